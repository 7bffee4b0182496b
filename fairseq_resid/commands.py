"""fairseq's own commands as subprocesses: where they are, and how they are shown so that a user can repeat them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


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
