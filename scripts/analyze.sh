#!/usr/bin/env bash
# What every site of a run's model learned, as figures and plots in RUN/analysis:
#     scripts/analyze.sh RUN [RUN...] [--data DATA] [--subset valid] [--sentences 400] [--no-ablation] [--cpu]
# --help says more. Everything is done by `fairseq-resid analyze`.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid analyze "$@"
