#!/usr/bin/env bash
# One HTML page of several runs, the first of them the baseline:
#     scripts/report.sh RUN [RUN...] [--out report.html] [--subset test]
# --help says more. Everything is done by `fairseq-resid report`.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid report "$@"
