# Sourced by quickstart.sh and multi30k.sh, in the project's root: the same recipe for the baseline and both
# architectures, and their table.
# shellcheck shell=bash

table_flags=() # of `fairseq-resid table`; the script that sources this may add some

# train_and_score RECIPE [fairseq-train flag...]
train_and_score() {
    local recipe=$1 arch word runs=() flags=()
    shift
    for word in "$@"; do
        case $word in
            --run | --run=* | --arch | --arch=*)
                printf '%s: three architectures are trained here, each in its own folder; use scripts/train.sh\n' "$word" >&2
                return 2
                ;;
            --verbose) export FAIRSEQ_RESID_VERBOSE=1 ;;
            *) flags+=("$word") ;;
        esac
    done
    # A run under other flags is an experiment; the recipe's own has a known result.
    if [[ -n ${at_least:-} && ${#flags[@]} == 0 ]]; then table_flags+=(--at-least "$at_least"); fi
    for arch in transformer transformer_sas transformer_rskip_ln; do
        scripts/train.sh "$recipe" --arch "$arch" ${flags[@]+"${flags[@]}"}
        scripts/evaluate.sh "checkpoints/$recipe-$arch"
        runs+=("checkpoints/$recipe-$arch")
    done
    printf '\n'
    python -m fairseq_resid table "${runs[@]}" ${table_flags[@]+"${table_flags[@]}"}
    printf '\n'
    scripts/analyze.sh "${runs[@]}"
    scripts/report.sh "${runs[@]}" --out "checkpoints/$recipe.html"
}
