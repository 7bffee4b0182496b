#!/usr/bin/env bash
# Builds the documentation site from docs/.
set -euo pipefail

usage() {
    cat <<'EOT'
usage: scripts/docs.sh [--out FOLDER] [--help]

Builds the documentation site. Warnings are errors. The site works offline: open FOLDER/index.html in a browser.
Creates or repairs the environment first (scripts/setup.sh --with-tests).

  --out FOLDER   output folder (default: docs/_build/html)

Environment variables and exit codes: see scripts/setup.sh --help. Exit code 1 also means that a page has an error.
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
            (($# >= 2)) || { printf 'docs: --out requires a folder\n' >&2 && exit 2; }
            out=$2
            shift
            ;;
        *)
            printf 'docs: unknown option %s. Allowed: --out FOLDER\n' "$1" >&2
            exit 2
            ;;
    esac
    shift
done

"$root/scripts/setup.sh" --with-tests
python=${FAIRSEQ_RESID_VENV:-$root/.venv}/bin/python
if ! "$python" -c 'import sphinx' 2>/dev/null; then
    printf 'docs: no Sphinx in this environment. Building the site requires Python 3.11, 3.12 or 3.13: scripts/setup.sh --python 3.13\n' >&2
    exit 3
fi
"$python" -m sphinx -b html --fresh-env --fail-on-warning --keep-going --quiet -d "$root/docs/_build/doctrees" "$root/docs" "$out"
printf 'docs: %s/index.html\n' "$out"
