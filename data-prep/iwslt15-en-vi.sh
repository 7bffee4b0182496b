#!/usr/bin/env bash
# Download IWSLT'15 EN-VI and prepare a binarised data folder: data-prep/iwslt15-en-vi.sh [--raw DIR] [--help] ...
# --raw accepts Stanford's tokenised release, plain text under the same names, or the official XML; it detects
# the format.
# Sources: fairseq_resid/data/text/manifests/iwslt15-en-vi.yaml. Run it again to resume.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare iwslt15-en-vi "$@"
