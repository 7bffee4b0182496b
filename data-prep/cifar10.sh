#!/usr/bin/env bash
# Download CIFAR-10 and prepare a data folder of images: data-prep/cifar10.sh [--raw PATH] [--help] ...
# Sources: fairseq_resid/data/images/manifests/cifar10.yaml. An interrupted preparation starts from scratch; a finished one is
# kept.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare-images cifar10 "$@"
