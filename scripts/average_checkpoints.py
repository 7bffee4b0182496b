#!/usr/bin/env python3
"""Average the weights of several checkpoints; see --help. Runs in the project's environment."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

root = Path(__file__).resolve().parent.parent
given = os.environ.get("FAIRSEQ_RESID_VENV")
python = str(Path(given or root / ".venv", "bin", "python"))
if not os.access(python, os.X_OK):
    if given or not (find_spec("torch") and find_spec("fairseq")):
        print(f"{python}: no such environment; run scripts/setup.sh", file=sys.stderr)
        sys.exit(3)
    python = sys.executable
os.environ["PYTHONPATH"] = f"{root}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
os.execv(python, [python, "-m", "fairseq_resid", "average", *sys.argv[1:]])
