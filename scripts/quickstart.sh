#!/usr/bin/env bash
# The main job, offline once installed: scripts/quickstart.sh [any fairseq-train flag]
# Sets up, makes the embedded EN-VI phrasebook, trains stock `transformer`, `transformer_sas` and `transformer_rskip_ln`
# at one small size, averages, decodes with beam 4 and length penalty 0.6, scores, and prints one table.
# Run again, it reuses what is finished. It uses a GPU if there is one. BLEU above 80 should come out. --verbose shows
# all that fairseq says.
set -euo pipefail

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi
runs=() flags=() at_least=(--at-least 80)
for word in "$@"; do
    case $word in
        --run | --run=* | --arch | --arch=*)
            printf '%s: quickstart.sh trains three architectures, each in its own folder; use scripts/train.sh\n' "$word" >&2
            exit 2
            ;;
        --verbose) export FAIRSEQ_RESID_VERBOSE=1 ;;
        *) flags+=("$word") at_least=() ;; # another recipe has no known result
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
printf 'One seed on a generated phrasebook: differences in this table mean nothing.\n\n'
fairseq-resid analyze "${runs[@]}"
fairseq-resid report "${runs[@]}" --out checkpoints/quickstart.html
