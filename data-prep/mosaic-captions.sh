#!/usr/bin/env bash
# Make a caption corpus from photographs: data-prep/mosaic-captions.sh --images DATA --network RUN [--help] ...
# fairseq_resid/evaluation/mosaics.py describes the corpus. An interrupted preparation resumes; a finished one is kept.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare-mosaics "$@"
