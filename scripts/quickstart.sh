#!/usr/bin/env bash
# Train and compare three small models, offline once installed: scripts/quickstart.sh [--verbose] [fairseq-train flags]
# Sets up the environment, generates an EN-VI phrasebook, trains `transformer`, `transformer_sas` and
# `transformer_rskip_ln` at the same small size, averages checkpoints, decodes with beam 4 and length penalty 0.6, scores
# and prints a table. It uses a GPU if there is one. Expected: BLEU above 80. Run it again to resume; finished steps are
# reused. --verbose shows the complete output of fairseq.
set -euo pipefail

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi
runs=() flags=() at_least=(--at-least 80)
for word in "$@"; do
    case $word in
        --run | --run=* | --arch | --arch=*)
            printf '%s: not supported by quickstart.sh, which trains three architectures; use scripts/train.sh\n' "$word" >&2
            exit 2
            ;;
        --verbose) export FAIRSEQ_RESID_VERBOSE=1 ;;
        *) flags+=("$word") at_least=() ;; # with different flags, the expected BLEU is unknown
    esac
done
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export PATH="${FAIRSEQ_RESID_VENV:-$PWD/.venv}/bin:$PATH"

raw=data-bin/phrasebook.raw
fairseq-resid prepare phrasebook --out "$raw"
fairseq-resid prepare custom --name phrasebook-en-vi --source en --target vi --vocab-size 1000 \
    --train "$raw/train" --valid "$raw/valid" --test "$raw/test" --out data-bin/phrasebook
[[ -f data-bin/phrasebook/baselines.json ]] ||
    fairseq-resid baselines --raw "$raw" --source en --target vi --json data-bin/phrasebook/baselines.json

for arch in transformer transformer_sas transformer_rskip_ln; do
    run=checkpoints/quickstart-$arch
    fairseq-resid train quickstart --arch "$arch" --run "$run" ${flags[@]+"${flags[@]}"}
    fairseq-resid evaluate "$run"
    runs+=("$run")
done
printf '\n'
fairseq-resid table "${runs[@]}" --baselines data-bin/phrasebook/baselines.json ${at_least[@]+"${at_least[@]}"}
untested='One seed on a generated phrasebook: differences in this table mean nothing.'
printf '%s\n\n' "$untested"
fairseq-resid analyze "${runs[@]}"
fairseq-resid report "${runs[@]}" --untested "$untested" --out checkpoints/quickstart.html
