"""Commands in their own process groups, which tests can watch, signal and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.ports import free_port
from support.trainings import by_hand, launched, updates

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 150


def begin(command: list[str], stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a command in its own process group, as a terminal does."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=variables, start_new_session=True, stdout=stdout, stderr=subprocess.STDOUT, text=True,
        # A script's background jobs ignore SIGINT, and their child processes inherit this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def finish(command: list[str]) -> str:
    process = begin(command)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output[-3000:]
    return str(output)


def processes_of(group: int) -> list[str]:
    """Return the names of a session's processes, except zombies."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, session = rest.split()[:4]
        if int(session) == group and state != "Z":
            found.append(name)
    return found


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str], pause: float = 0.02) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(pause)


def logged(run: Path) -> int:
    """Return the number of updates in a run's log."""
    file = run / "train.log"
    return len(updates(file.read_text())) if file.exists() else 0


def all_are_whole(run: Path) -> bool:
    return all(zipfile.ZipFile(file).testzip() is None for file in run.glob("*.pt"))


def trainer_of(rank: int) -> int:
    """Return the PID of the fairseq-train with this rank in a training run started by hand."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_text().split("\0")
        except OSError:
            continue
        if any(word.endswith("bin/fairseq-train") for word in words) and f"--distributed-rank\0{rank}" in "\0".join(
            words
        ):
            return int(status.parent.name)
    raise AssertionError(f"no fairseq-train with --distributed-rank {rank} is running")


def start_two(recipe: Path, run: Path, *more: str) -> list[subprocess.Popen[str]]:
    return [begin([*command, *more]) for command, _ in by_hand(launched(recipe, run), free_port())]
