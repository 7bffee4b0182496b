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
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export PATH="${FAIRSEQ_RESID_VENV:-$PWD/.venv}/bin:$PATH"

raw=data-bin/phrasebook.raw
python -m fairseq_resid prepare phrasebook --out "$raw"
python -m fairseq_resid prepare custom --name phrasebook-en-vi --source en --target vi --vocab-size 1000 \
    --train "$raw/train" --valid "$raw/valid" --test "$raw/test" --out data-bin/phrasebook
[[ -f data-bin/phrasebook/baselines.json ]] ||
    python -m fairseq_resid baselines --raw "$raw" --source en --target vi --json data-bin/phrasebook/baselines.json

# shellcheck source=scripts/architectures.sh
. scripts/architectures.sh
table_flags+=(--baselines data-bin/phrasebook/baselines.json)
# shellcheck disable=SC2034  # read by train_and_score
at_least=80
train_and_score quickstart "$@"
