# Sourced by the other scripts: sets `root` to the project's folder and `python` to the environment's interpreter. Exits
# with a one-line error if no environment exists.
# shellcheck shell=bash

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
python="${FAIRSEQ_RESID_VENV:-$root/.venv}/bin/python"
if [[ ! -x "$python" ]]; then
    if [[ -n "${FAIRSEQ_RESID_VENV:-}" ]]; then
        printf 'FAIRSEQ_RESID_VENV=%s: no such environment; run scripts/setup.sh\n' "$FAIRSEQ_RESID_VENV" >&2
        exit 3
    fi
    python=python3
    if ! "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") and u.find_spec("fairseq")))'; then
        printf 'no environment in %s, and torch or fairseq is not installed for python3; run scripts/setup.sh\n' "$root/.venv" >&2
        exit 3
    fi
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
