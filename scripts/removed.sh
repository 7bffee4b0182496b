#!/usr/bin/env bash
# Prints the replacement for a script that existed in version 0.6. The old script names are links to this file.
set -euo pipefail

name=$(basename -- "$0" .sh)
case $name in
    multi30k) command="data-prep/multi30k-en-de.sh, then scripts/train.sh multi30k-en-de --arch transformer_sas" ;;
    *) command="fairseq-resid $name" ;;
esac
printf 'scripts/%s.sh: removed in version 1.0; use %s (in the environment: source .venv/bin/activate)\n' "$name" "$command" >&2
exit 2
