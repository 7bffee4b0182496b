"""Checksums of large files, each computed once and remembered until the file changes."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ... import records
from ..fetch import Fingerprint, describe


@dataclass(frozen=True)
class Remembered:
    """The fingerprint of a file, and its stamp when the fingerprint was computed."""

    stamp: tuple[int, ...]
    fingerprint: Fingerprint


class Fingerprints:
    """The fingerprints of files on disk.

    A file counts as unchanged if its path, size, inode, mtime and ctime are the same. No program can set ctime.
    `memory` is the file that stores the fingerprints for the next run; None keeps them in this process only.
    """

    def __init__(self, memory: Path | None) -> None:
        self.memory = memory
        self.known = (records.remembered(memory, dict[str, Remembered]) if memory else None) or {}

    def of(self, path: Path) -> Fingerprint:
        """Return the fingerprint of a file."""
        key, stamp = str(path.resolve()), _stamp(path)
        known = self.known.get(key)
        if known is not None and known.stamp == stamp:
            return known.fingerprint
        fingerprint = describe(path)
        if _stamp(path) == stamp:
            self.known[key] = Remembered(stamp, fingerprint)
            if self.memory is not None:
                # Without this file the next run computes the checksums again, which is not worth an error.
                with contextlib.suppress(OSError):
                    self.memory.parent.mkdir(parents=True, exist_ok=True)
                    records.write(self.memory, self.known)
        return fingerprint


def _stamp(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
