#!/usr/bin/env bash
# Train by a recipe, resumably: scripts/train.sh RECIPE --arch ARCH [--run RUN] [any fairseq-train flag]
# --help says more. Everything is done by `fairseq-resid train`.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid train "$@"
