"""Run commands in the root folder of the project."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def shell(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "LOGLEVEL"} | variables
    return subprocess.run([str(word) for word in words], cwd=ROOT, env=environment, capture_output=True, text=True)
