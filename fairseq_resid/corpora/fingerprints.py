"""Checksums of large files, each computed once: remembered for as long as the file does not change."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ..folders.files import write_text
from .fetch import describe

KEYS = {"bytes", "mtime_ns", "sha256", "md5"}


class Fingerprints:
    """What identifies files on disk: size, checksums, time of change.

    A file is taken to be the one that was read before if its path, size, inode and both times (of its content, and of
    its inode, which no program can set) are the same. `memory` is the file where this is kept, None for this process
    alone.
    """

    def __init__(self, memory: Path | None) -> None:
        self.memory = memory
        self.known: dict[str, dict[str, Any]] = {}
        if memory is not None:
            with contextlib.suppress(OSError, ValueError, TypeError):
                self.known = dict(json.loads(memory.read_text(encoding="utf-8")))

    def of(self, path: Path) -> dict[str, Any]:
        """Return size, checksums and time of a file."""
        key, stamp = str(path.resolve()), _stamp(path)
        found = self.known.get(key)
        if isinstance(found, dict) and found.get("stamp") == stamp and found.get("fingerprint", {}).keys() >= KEYS:
            return dict(found["fingerprint"])
        fingerprint = describe(path)
        if _stamp(path) == stamp:
            self.known[key] = {"stamp": stamp, "fingerprint": fingerprint}
            self._keep()
        return fingerprint

    def _keep(self) -> None:
        if self.memory is None:
            return
        # Without it the next run computes again: not worth an error.
        with contextlib.suppress(OSError):
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.memory, json.dumps(self.known, indent=1) + "\n")


def _stamp(path: Path) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
