#!/usr/bin/env bash
# What to type instead of a script of version 0.6. Its name is a link to this file.
set -euo pipefail

name=$(basename -- "$0" .sh)
case $name in
    multi30k) command="data-prep/multi30k-en-de.sh, then scripts/train.sh multi30k-en-de --arch transformer_sas" ;;
    *) command="fairseq-resid $name" ;;
esac
printf 'scripts/%s.sh: removed in version 0.7; type: %s\n' "$name" "$command" >&2
exit 2
