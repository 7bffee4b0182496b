#!/usr/bin/env bash
# Translate raw text with a run: scripts/translate.sh RUN < text > translations
# One sentence a line, an empty line for an empty line. --help says more.
# Everything is done by `fairseq-resid translate`.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid translate "$@"
