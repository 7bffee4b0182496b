#!/usr/bin/env bash
# Download WMT'14 EN-FR and prepare a binarised data folder: data-prep/wmt14-en-fr.sh [--raw DIR] [--help] ...
# Sources: fairseq_resid/data/text/manifests/wmt14-en-fr.yaml. Run it again to resume.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare wmt14-en-fr "$@"
