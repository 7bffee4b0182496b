#!/usr/bin/env bash
# CIFAR-10, from download to a data folder of images: data-prep/cifar10.sh [--raw PATH] [--help] ...
# What it is made of: fairseq_resid/data/images/manifests/cifar10.yaml. Run again, it does nothing, or begins again.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/environment.sh"
exec "$python" -m fairseq_resid prepare-images cifar10 "$@"
