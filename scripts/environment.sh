# Sourced by the other scripts: sets `root` to the project's folder and `python` to the interpreter of the environment or,
# without one, to a python3 that has torch and fairseq. Exits with a one-line error if there is neither.
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
        printf '%s: no such environment, and python3 lacks torch or fairseq; run scripts/setup.sh\n' "$root/.venv" >&2
        exit 3
    fi
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
