#!/usr/bin/env bash
# Train by a recipe, resumably: scripts/train.sh RECIPE --arch ARCH [--run RUN] [any fairseq-train flag]
# --help says more. Everything is done by `python -m fairseq_resid.training.launch`.
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
python="${FAIRSEQ_RESID_VENV:-$root/.venv}/bin/python"
[[ -x "$python" ]] || python=python3
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m fairseq_resid.training.launch "$@"
