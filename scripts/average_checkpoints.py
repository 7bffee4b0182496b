#!/usr/bin/env python3
"""Average the weights of several checkpoints; --help says how."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    from fairseq_resid.evaluation.averaging import main
except ModuleNotFoundError as error:
    sys.exit(f"average_checkpoints.py: {error}; in the project's environment: source .venv/bin/activate")

if __name__ == "__main__":
    sys.exit(main())
