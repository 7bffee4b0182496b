#!/usr/bin/env bash
# The real-corpus example, whole: scripts/multi30k.sh [--raw DIR] [any fairseq-train flag]
# Prepares Multi30k EN-DE, from DIR or downloaded, trains the baseline and the two architectures by
# scripts/recipes/multi30k-en-de.txt, scores each on test_2016_flickr, and prints one table. Run again, it goes on
# where it was stopped. On two CPU cores: hours (three to four, estimated).
set -euo pipefail

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi
raw=()
if [[ "${1:-}" == --raw ]]; then
    [[ -n "${2:-}" ]] || { printf 'multi30k.sh: --raw needs a folder\n' >&2; exit 2; }
    raw=(--raw "$(cd -- "$2" && pwd)")
    shift 2
fi
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export PATH="${FAIRSEQ_RESID_VENV:-$PWD/.venv}/bin:$PATH"

data-prep/multi30k-en-de.sh ${raw[@]+"${raw[@]}"}
# shellcheck source=scripts/architectures.sh
. scripts/architectures.sh
train_and_score multi30k-en-de "$@"
