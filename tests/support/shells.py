"""Run commands: in this process, as processes that must succeed, or within a number of seconds."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def resid(folder: Path, *words: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run fairseq-resid with this input in a folder, in this process, which has already imported torch and fairseq."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdin", "stdout", "stderr")}
    streams["stdin"].buffer.write(text.encode())
    streams["stdin"].buffer.seek(0)
    argv = [str(word) for word in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        try:
            code = main(argv)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    for stream in streams.values():
        stream.seek(0)
    return subprocess.CompletedProcess(argv, code, streams["stdout"].read(), streams["stderr"].read())


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
