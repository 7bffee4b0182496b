#!/usr/bin/env bash
# Train and compare three small models: scripts/quickstart.sh [--verbose] [fairseq-train flags]
# Sets up the environment, generates an EN-VI phrasebook, trains `transformer`, `transformer_sas` and
# `transformer_rskip_ln` with the recipe `quickstart`, averages checkpoints, decodes with beam 4 and length penalty 0.6,
# prints a table and writes a report. Needs no network once installed, and uses a GPU if there is one. BLEU should be
# above 80. Run the script again to resume; finished steps are reused. Runs with flags have their own folders, such as
# checkpoints/quickstart-max-update-500-transformer. --verbose also prints the output of fairseq. Ctrl-C stops the
# script and everything that it started.
set -euo pipefail

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    sed -n '2,9s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi
runs=() flags=() at_least=(--at-least 80)
for word in "$@"; do
    case $word in
        --run | --run=* | --arch | --arch=*)
            printf '%s: not supported, because quickstart.sh chooses architectures and folders; use scripts/train.sh\n' "$word" >&2
            exit 2
            ;;
        --verbose) export FAIRSEQ_RESID_VERBOSE=1 ;;
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
run() { # run COMMAND...
    local status=0
    "$@" </dev/null &
    wait "$!" || status=$?
    while [[ -n $(jobs -pr) ]]; do wait || true; done # a signal interrupts `wait`
    if ((stopped)); then exit "$stopped"; fi
    return "$status"
}

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
run scripts/setup.sh
export PATH="${FAIRSEQ_RESID_VENV:-$PWD/.venv}/bin:$PATH"

raw=data-bin/phrasebook.raw
run python data-prep/phrasebook.py --out "$raw"
run fairseq-resid prepare custom --name phrasebook-en-vi --source en --target vi --vocab-size 1000 \
    --train "$raw/train" --valid "$raw/valid" --test "$raw/test" --out data-bin/phrasebook

for arch in transformer transformer_sas transformer_rskip_ln; do
    folder=checkpoints/$name-$arch
    run fairseq-resid train quickstart --arch "$arch" --run "$folder" ${flags[@]+"${flags[@]}"}
    run fairseq-resid evaluate "$folder"
    runs+=("$folder")
done
printf '\n'
run fairseq-resid table "${runs[@]}" ${at_least[@]+"${at_least[@]}"}
untested='One seed on a generated phrasebook: differences in this table mean nothing.'
printf '%s\n\n' "$untested"
run fairseq-resid analyze "${runs[@]}"
run fairseq-resid report "${runs[@]}" --untested "$untested" --out "checkpoints/$name.html"
