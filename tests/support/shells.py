"""Run commands that must succeed, or that must end within a number of seconds."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def shell(*words: object, cwd: Path) -> str:
    """Run a command, which must succeed, and return its output."""
    done = run_within(None, words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
