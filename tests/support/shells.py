"""Run commands: in the root folder of the project, or within a number of seconds."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def shell(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "LOGLEVEL"} | variables
    return subprocess.run([str(word) for word in words], cwd=ROOT, env=environment, capture_output=True, text=True)


def run_within(
    seconds: float | None, command: Sequence[object], text: str | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command with this input. After so many seconds, kill it and its children, and raise TimeoutExpired.

    After a timeout, subprocess.run kills only the command itself, and waits for its children as long as they run.
    """
    words = [str(word) for word in command]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, start_new_session=True, **{**pipes, **settings}) as process:
        try:
            output, errors = process.communicate(text, timeout=seconds)
        except BaseException:  # also after Ctrl-C, which the new session does not receive
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)
