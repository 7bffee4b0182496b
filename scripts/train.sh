#!/usr/bin/env bash
# Train or resume a recipe: scripts/train.sh RECIPE --arch ARCH [--run RUN] [any fairseq-train flag]
# Runs `fairseq-resid train`. See --help for all options.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid train "$@"
