#!/usr/bin/env bash
# Train and compare three small models: scripts/quickstart.sh [--verbose] [fairseq-train flags]
# Sets up the environment, generates an EN-VI phrasebook, trains `transformer`, `transformer_sas` and
# `transformer_rskip_ln` at the same time with the recipe `quickstart`, averages checkpoints, decodes with beam 4 and
# length penalty 0.6, prints a table and writes a report. Needs no network once installed, and uses a GPU if there is
# one. BLEU should be above 80. Run the script again to resume; finished steps are reused. Runs with flags have their own
# folders, such as checkpoints/quickstart-max-update-500-transformer. --verbose also prints the output of fairseq.
# checkpoints/quickstart-ARCH.log has all output of a model. Ctrl-C stops the script and everything that it started.
set -euo pipefail

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi
runs=() flags=() at_least=(--at-least 80) verbose=""
for word in "$@"; do
    case $word in
        --run | --run=* | --arch | --arch=*)
            printf '%s: not supported, because quickstart.sh chooses architectures and folders; use scripts/train.sh\n' "$word" >&2
            exit 2
            ;;
        --verbose) verbose=yes && export FAIRSEQ_RESID_VERBOSE=1 ;;
        *) flags+=("$word") at_least=() ;; # with different flags, the expected BLEU is unknown
    esac
done
# Different flags get different run folders, because runs of an earlier quickstart cannot be resumed with other flags.
name=quickstart
if ((${#flags[@]})); then name+=$(printf -- '-%s' "${flags[@]#--}" | tr -c '[:alnum:].-' -); fi
name=${name:0:150}

# Job control gives every command its own process group. A signal to this script alone, or Ctrl-C in a terminal, is
# forwarded to the group, so that nothing keeps running.
set -m
stopped=0
forward() { # forward SIGNAL EXIT-CODE
    local group
    stopped=$2
    for group in $(jobs -pr); do kill -s "$1" -- "-$group" 2>/dev/null || true; done
}
trap 'forward INT 130' INT
trap 'forward TERM 143' TERM
trap 'forward HUP 129' HUP
finish() { # finish PROCESS...: wait for these; fail if one of them did
    local status=0 process
    for process in "$@"; do wait "$process" || status=$?; done
    while [[ -n $(jobs -pr) ]]; do wait || true; done # a signal interrupts `wait`
    if ((stopped)); then exit "$stopped"; fi
    return "$status"
}
run() { # run COMMAND...
    "$@" </dev/null &
    finish "$!"
}

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
run scripts/setup.sh
export PATH="${FAIRSEQ_RESID_VENV:-$PWD/.venv}/bin:$PATH"

raw=data-bin/phrasebook.raw
run python data-prep/phrasebook.py --out "$raw"
run fairseq-resid prepare custom --name phrasebook-en-vi --source en --target vi --vocab-size 1000 \
    --train "$raw/train" --valid "$raw/valid" --test "$raw/test" --out data-bin/phrasebook

# Three models with one thread each use the cores better than one after the other with all threads.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
model() { # model ARCH FOLDER: train and score a model; show everything but the commands, which are in the log
    { fairseq-resid train quickstart --arch "$1" --run "$2" ${flags[@]+"${flags[@]}"} && fairseq-resid evaluate "$2"; } 2>&1 |
        { trap '' INT TERM HUP && while IFS= read -r line; do
            printf '%s\n' "$line" >>"$2.log"
            [[ $line == '+ '* && -z $verbose ]] || printf '%s\n' "$line"
        done; }
}
mkdir -p checkpoints
models=()
for arch in transformer transformer_sas transformer_rskip_ln; do
    runs+=("checkpoints/$name-$arch")
    model "$arch" "checkpoints/$name-$arch" </dev/null &
    models+=("$!")
done
finish "${models[@]}"
printf '\n'
run fairseq-resid table "${runs[@]}" ${at_least[@]+"${at_least[@]}"}
untested='One seed on a generated phrasebook: differences in this table mean nothing.'
printf '%s\n\n' "$untested"
run fairseq-resid analyze --sentences 100 "${runs[@]}"
run fairseq-resid report "${runs[@]}" --untested "$untested" --out "checkpoints/$name.html"
