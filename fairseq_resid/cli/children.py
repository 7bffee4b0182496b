"""fairseq's own commands as subprocesses: find them, print them for copying, follow their logs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from .. import files
from ..console import say, with_lines
from .machine import PACKAGE
from .quiet import is_verbose

POLL = 0.5  # seconds between reads of a log
AWAKE = 1.0  # seconds that a wait for a command may block
TAIL = 25  # lines of a log that are shown when its command fails
# The last line of a log that ends with one of our errors, or with a traceback of Python.
CAUSE = re.compile(r"fairseq_resid: error: \S.*|(?:\w+\.)*\w*(?:Error|Exception): \S.*")
Failure = TypeVar("Failure", bound=Exception)
# Seconds after which an interrupted command receives SIGTERM.
INTERRUPT_AFTER = 3.0


def program(name: str) -> str:
    """Return a fairseq command: the path of the copy next to this interpreter if PATH finds another copy or none,
    otherwise the bare name.

    Raises: ValueError if fairseq is not installed.
    """
    own = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if own.is_file():
        return name if on_path and os.path.samefile(on_path, own) else str(own)
    if not on_path:
        raise ValueError(f"{name}: not found next to {sys.executable} or on PATH; is fairseq installed?")
    return name


def user_dir() -> str:
    """Return the plugin's folder for --user-dir: `fairseq_resid` if it is in the current folder, otherwise its path."""
    here = Path(PACKAGE.name)
    return here.name if here.is_dir() and here.samefile(PACKAGE) else str(PACKAGE)


def show(argv: Sequence[str], tail: str = "") -> None:
    """Print a command line that can be pasted into a shell; `tail` is a redirection."""
    say(f"+ {shlex.join(argv)}{tail}")


def failure(name: str, code: int, log: Path, kind: type[Failure]) -> Failure:
    """Return the error for a command that failed: its cause, if the log ends with one, or else the end of the log."""
    lines = [line.rstrip() for line in files.last_lines(log, TAIL)]
    if lines and CAUSE.fullmatch(lines[-1]):
        cause = lines[-1].removeprefix("fairseq_resid: error: ").rstrip(".")
        return kind(f"{name} failed: {cause}; its output is in {log}")
    error = kind(f"{name} failed with exit code {code}; the last lines of {log}:")
    return with_lines(error, [f"    {line[:300]}" for line in lines])


@contextmanager
def followed(log: Path, take: Callable[[str], None]) -> Iterator[None]:
    """Call `take` with every line appended to `log` during the block, and with "" every POLL seconds if there is none.

    With --verbose, the lines are printed too.
    Raises: whatever `take` raises, at the end of the block.
    """
    ended = threading.Event()

    def follow(file: IO[bytes]) -> None:
        rest = b""
        while True:
            is_last = ended.is_set()
            block = file.read(1 << 16)
            *lines, rest = (rest + block).split(b"\n")
            if is_last and not block and rest:
                lines, rest = [rest], b""
            for line in (raw.decode("utf-8", "replace") for raw in lines):
                if is_verbose():
                    say(line)
                take(line)
            if block:
                continue
            if is_last:
                return
            take("")
            ended.wait(POLL)

    log.touch()
    with log.open("rb") as file, ThreadPoolExecutor(1) as pool:
        file.seek(0, os.SEEK_END)
        follower = pool.submit(follow, file)
        try:
            yield
        finally:
            ended.set()
    follower.result()  # raises, for example, if the reader of our output has exited


def run(
    argv: list[str],
    output: IO[bytes] | None = None,
    lock: int | None = None,
    errors: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    notice: str = "",
) -> int:
    """Run a command, wait for it and return its exit code; `output` receives its stdout, `errors` its stderr.

    environment: additional environment variables
    notice: message written to stderr at the first signal, for commands that are slow to stop

    SIGTERM and SIGHUP are forwarded. After SIGINT the command receives SIGTERM unless the same Ctrl-C has already
    stopped it. The command never outlives this call. It inherits the file descriptor `lock`, so that a folder stays
    locked while any process works in it.

    Raises: SystemExit with 128 + signal after the command has ended, if a signal was received.
    """
    received: list[int] = []
    # fairseq prints sentences in the encoding of the locale, and we read them as UTF-8.
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1", **(environment or {})}
    kept = () if lock is None else (lock,)
    with subprocess.Popen(argv, stdout=output, stderr=errors, env=variables, pass_fds=kept) as process:

        def handle(number: int, _: object) -> None:
            if not received:
                os.write(2, notice.encode())  # not print(), because the signal may have interrupted a print()
            received.append(number)
            if number != signal.SIGINT:
                process.send_signal(number)
            else:
                # If the terminal sent Ctrl-C to the command too, it will have ended by then. Otherwise send SIGTERM,
                # because a command that a script started in the background ignores SIGINT.
                timer = threading.Timer(INTERRUPT_AFTER, process.terminate)
                timer.daemon = True
                timer.start()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            code = None
            while code is None:
                # With a timeout: after SIGSTOP and SIGCONT, the kernel may deliver a signal to another thread, and the
                # handler then only runs when this thread wakes up.
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(AWAKE)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
    return code
