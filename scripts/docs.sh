#!/usr/bin/env bash
# Builds the documentation site from docs/.
set -euo pipefail

usage() {
    cat <<'EOT'
usage: scripts/docs.sh [--out FOLDER] [--help]

Creates or repairs the environment (scripts/setup.sh --with-tests), then builds the documentation site. The site works
offline: open FOLDER/index.html in a browser. A warning counts as an error.

  --out FOLDER   output folder (default: docs/_build/html)

The environment variables and exit codes are those of scripts/setup.sh; see its --help. In addition, exit code 1 means
that a page has an error, and exit code 3 that the environment has no Sphinx.
EOT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
out=$root/docs/_build/html
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit
            ;;
        --out)
            (($# >= 2)) || { printf 'docs: --out: no value; allowed: a folder\n' >&2 && exit 2; }
            out=$2
            shift
            ;;
        *)
            printf 'docs: %s: unknown option; allowed: --out FOLDER, --help\n' "$1" >&2
            exit 2
            ;;
    esac
    shift
done

"$root/scripts/setup.sh" --with-tests
python=${FAIRSEQ_RESID_VENV:-$root/.venv}/bin/python
if ! "$python" -c 'import sphinx' 2>/dev/null; then
    printf 'docs: %s: no Sphinx, which requires Python 3.11, 3.12 or 3.13; run scripts/setup.sh --python 3.13\n' "$python" >&2
    exit 3
fi
"$python" -m sphinx -b html --fresh-env --fail-on-warning --keep-going --quiet -d "$root/docs/_build/doctrees" "$root/docs" "$out"
printf 'docs: %s/index.html\n' "$out"
