#!/usr/bin/env bash
# IWSLT'15 EN-VI, from download to a binarised data folder: data-prep/iwslt15-en-vi.sh [--raw DIR] [--help] ...
# --raw takes Stanford's tokenised release, plain text under the same names, or the official XML; it is told which.
# What it is made of: fairseq_resid/data/text/manifests/iwslt15-en-vi.yaml. Run again, it goes on where it was stopped.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare iwslt15-en-vi "$@"
