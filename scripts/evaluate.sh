#!/usr/bin/env bash
# Average the last checkpoints of each run, decode the validation and test sets, and score the results:
#     scripts/evaluate.sh RUN [RUN...] [--data DATA] [--last 10] [--by epoch|update] [--subset NAME]... [--cpu]
# Runs `fairseq-resid evaluate`. See --help for all options.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid evaluate "$@"
