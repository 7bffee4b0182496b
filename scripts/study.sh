#!/usr/bin/env bash
# Run what is missing of a study, resumably: scripts/study.sh STUDY.yaml [--jobs N] [--hours H]
# --help says more. Everything is done by `fairseq-resid study`.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
exec "$python" -m fairseq_resid study "$@"
