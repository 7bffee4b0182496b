# Sourced by quickstart.sh and multi30k.sh, in the project's root: the same recipe for the baseline and both
# architectures, and their table.
# shellcheck shell=bash

table_flags=() # of fairseq_resid.evaluation.table; the script that sources this may add some

# train_and_score RECIPE LAST [fairseq-train flag...]
train_and_score() {
    local recipe=$1 last=$2 arch runs=()
    shift 2
    for arch in transformer transformer_sas transformer_rskip_ln; do
        printf '\n== %s ==\n' "$arch"
        scripts/train.sh "$recipe" --arch "$arch" "$@"
        scripts/evaluate.sh "checkpoints/$recipe-$arch" --last "$last"
        runs+=("checkpoints/$recipe-$arch")
    done
    printf '\n'
    python -m fairseq_resid.evaluation.table "${runs[@]}" ${table_flags[@]+"${table_flags[@]}"}
}
