#!/usr/bin/env bash
# Prepare COCO captions: data-prep/coco-captions.sh --captions dataset_coco.json --features PATH [--help] ...
# Expected counts: fairseq_resid/data/captions/prepare_captions.py. An interrupted preparation resumes; a finished one is
# kept.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare-captions coco-captions "$@"
