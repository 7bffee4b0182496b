"""fairseq's own commands as subprocesses: where they are, and how they are shown so that a user can repeat them."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

PACKAGE = Path(__file__).resolve().parent.parent
# Seconds after which an interrupted command is asked to end.
INTERRUPT_AFTER = 3.0


def program(name: str) -> str:
    """Return a fairseq command: its bare name where PATH finds this interpreter's own, else its path.

    Raises: ValueError where fairseq is not installed.
    """
    own = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if own.is_file():
        return name if on_path and os.path.samefile(on_path, own) else str(own)
    if not on_path:
        raise ValueError(f"{name}: not beside {sys.executable} and not on PATH: is fairseq installed?")
    return name


def user_dir() -> str:
    """Return the plugin's folder for --user-dir: `fairseq_resid` where the current folder holds it, else its path."""
    here = Path(PACKAGE.name)
    return here.name if here.is_dir() and here.samefile(PACKAGE) else str(PACKAGE)


def show(words: list[str], tail: str = "") -> None:
    """Print a command as a line that can be pasted into a shell; `tail` is a redirection."""
    print(f"+ {shlex.join(words)}{tail}", flush=True)


def run(
    words: list[str],
    output: IO[bytes] | None = None,
    lock: int | None = None,
    errors: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command to its end and return its exit code; `output` takes its stdout, `errors` its stderr.

    environment: variables that it gets beside those that are set

    SIGTERM and SIGHUP are passed on to it; after SIGINT it is asked to end where it has not come from the terminal to
    both. It is waited for and never left behind. It inherits the file descriptor `lock`, so that a lock on a folder
    holds as long as anybody works there.

    Raises: SystemExit with 128 + signal where one came, after the command has ended.
    """
    received: list[int] = []
    # Whatever the locale is: fairseq prints sentences in it, and they are read as UTF-8.
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1", **(environment or {})}
    kept = () if lock is None else (lock,)
    with subprocess.Popen(words, stdout=output, stderr=errors, env=variables, pass_fds=kept) as process:

        def handle(number: int, _: object) -> None:
            received.append(number)
            if number != signal.SIGINT:
                process.send_signal(number)
            else:
                # Whatever had Ctrl-C from the terminal too has ended by then. By SIGTERM: what a script began in the
                # background ignores SIGINT.
                timer = threading.Timer(INTERRUPT_AFTER, process.terminate)
                timer.daemon = True
                timer.start()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
    return code
