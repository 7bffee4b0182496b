"""Process trees and their memory, read from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for status in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def _field(file: Path, name: str) -> int:
    """Return a field of a status file in /proc, in bytes; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def resident(pid: int) -> int:
    """Return the resident memory (VmRSS) of a process and its descendants, in bytes."""
    return sum(_field(PROC / str(one) / "status", "VmRSS:") for one in tree(pid))


def proportional(pid: int) -> dict[str, int]:
    """Return the proportional set size of a process tree, summed by command line."""
    found: dict[str, int] = {}
    for one in tree(pid):
        with contextlib.suppress(OSError):
            command = (PROC / str(one) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            found[command] = found.get(command, 0) + _field(PROC / str(one) / "smaps_rollup", "Pss:")
    return found


def descriptors(pid: int) -> int:
    """Return the number of open files of a process."""
    return len(list((PROC / str(pid) / "fd").iterdir()))
