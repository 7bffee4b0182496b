#!/usr/bin/env bash
# WMT'14 EN-DE, from download to a binarised data folder: data-prep/wmt14-en-de.sh [--raw DIR] [--help] ...
# What it is made of: fairseq_resid/data/text/manifests/wmt14-en-de.yaml. Run again, it goes on where it was stopped.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare wmt14-en-de "$@"
