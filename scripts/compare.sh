#!/usr/bin/env bash
# Is one run better than another? scripts/compare.sh BASELINE RUN [RUN...] [--model averaged|last] [--markdown]
# Paired bootstrap and approximate randomisation on evaluated runs, mean and deviation over seeds. --help says more.
# Everything is done by `fairseq-resid compare`.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid compare "$@"
