"""Describe this machine: processor, software versions, and commit of the source tree, for records of measurements."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def processor() -> str:
    name = platform.processor() or platform.machine()
    file = Path("/proc/cpuinfo")
    if file.is_file():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return name


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def python() -> str:
    return platform.python_version()


def commit() -> str | None:
    """Return the commit of the source tree that contains this code; None outside a git checkout.

    " with changes" is appended if a file of the package differs from that commit, or is new and not ignored.
    """
    git = ["git", "-C", str(PACKAGE)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        # The virtual environment may be inside another repository, which does not track this file.
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", "version.py"], capture_output=True)
        changes = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    if tracked.returncode:
        return None
    return f"{head} with changes" if changes else head
