#!/usr/bin/env bash
# Download Multi30k EN-DE and prepare a binarised data folder: data-prep/multi30k-en-de.sh [--raw DIR] [--help] ...
# Sources: fairseq_resid/data/text/manifests/multi30k-en-de.yaml. Run it again to resume.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare multi30k-en-de "$@"
