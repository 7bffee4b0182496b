#!/usr/bin/env bash
# Multi30k EN-DE from raw text to a binarised data folder: data-prep/multi30k-en-de.sh RAW [DATA]
#   RAW   folder with train.{en,de}, val.{en,de}, test_2016_flickr.{en,de} (task 1, raw), one sentence a line
#   DATA  the folder to make (default: data-bin/multi30k-en-de)
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || "$1" == -h || "$1" == --help ]]; then
    sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
    [[ "${1:-}" == -h || "${1:-}" == --help ]] && exit 0
    exit 2
fi
# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid.corpora.binarise --name multi30k-en-de --source en --target de --vocab-size 8000 \
    --train "$1/train" --valid "$1/val" --test "$1/test_2016_flickr" --out "${2:-data-bin/multi30k-en-de}"
