# Sourced by the other scripts: sets `root`, the project's folder, and `python`, that of its environment, or ends
# with a line that says what is missing.
# shellcheck shell=bash

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
python="${FAIRSEQ_RESID_VENV:-$root/.venv}/bin/python"
if [[ ! -x "$python" ]]; then
    if [[ -n "${FAIRSEQ_RESID_VENV:-}" ]]; then
        printf 'FAIRSEQ_RESID_VENV=%s: no environment there; run scripts/setup.sh\n' "$FAIRSEQ_RESID_VENV" >&2
        exit 3
    fi
    python=python3
    if ! "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") and u.find_spec("fairseq")))'; then
        printf 'no environment in %s, and python3 has no torch or no fairseq; run scripts/setup.sh\n' "$root/.venv" >&2
        exit 3
    fi
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
