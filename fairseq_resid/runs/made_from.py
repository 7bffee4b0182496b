"""Notes of what a file was made from, so that it is made again only if an input or a setting has changed.

The note of RUN/averaged.pt is RUN/averaged.json; those of the files in RUN/decode are next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .. import records
from ..console import say
from ..files import sha256

T = TypeVar("T")


@dataclass(frozen=True)
class FileState:
    """File fingerprint: name, size in bytes, modification time, and SHA-256, which is empty before version 1.1."""

    file: str
    size: int
    mtime_ns: int
    sha256: str = ""

    @classmethod
    def of(cls, path: Path) -> FileState:
        status = path.stat()
        return cls(path.name, status.st_size, status.st_mtime_ns, _content(path, status.st_size, status.st_mtime_ns))

    def renewed(self, path: Path) -> FileState | None:
        """Return the fingerprint with the file's modification time; None if the file differs.

        The file is read only if its time differs, as after a copy.
        """
        status = path.stat()
        if (self.file, self.size) != (path.name, status.st_size):
            return None
        if self.mtime_ns == status.st_mtime_ns:
            return self
        is_same = self.sha256 == _content(path, status.st_size, status.st_mtime_ns)
        return replace(self, mtime_ns=status.st_mtime_ns) if is_same else None


@cache
def _content(path: Path, size: int, mtime_ns: int) -> str:
    return sha256(path)


@dataclass(frozen=True)
class MadeFrom:
    """A note. files: fingerprints of the inputs, in order; settings: all else that the result depends on."""

    files: list[FileState]
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Sequence[Path], settings: Mapping[str, Any] | None = None) -> MadeFrom:
        return cls([FileState.of(path) for path in paths], dict(settings or {}))

    @classmethod
    def read(cls, note: Path) -> MadeFrom | None:
        """Read a note; return None if it does not exist or cannot be read. Version 1.0.0 had a form for each use."""
        known = records.remembered(note, dict)
        if known is None:
            return None
        if "inputs" in known:  # of an average, with its file
            known = {"files": [*known["inputs"], known["output"]]}
        elif "checkpoints" in known:  # of hypotheses or the NLL
            settings = {**known["settings"], **known["text"], "blank": known.get("blank", [])}
            known = {"files": [*known["checkpoints"], *known["files"]], "settings": settings}
        elif "checkpoint" in known:  # of the predictions of an image model
            known = {"files": [known["checkpoint"], known["file"]]}
        try:
            return msgspec.convert(known, cls)
        except msgspec.ValidationError:
            return None


def is_current(file: Path, note: Path, inputs: Sequence[Path], settings: Mapping[str, Any] | None = None) -> bool:
    """Return whether a file exists and was made from these inputs with these settings; then renew its note."""
    known = MadeFrom.read(note) if file.is_file() else None
    if known is None or known.settings != dict(settings or {}) or len(known.files) != len(inputs):
        return False
    now = [one.renewed(path) for one, path in zip(known.files, inputs, strict=True)]
    renewed = [one for one in now if one is not None]
    if len(renewed) < len(now):
        return False
    if renewed != known.files:
        records.write(note, replace(known, files=renewed))
    return True


def reuse(
    file: Path,
    note: Path,
    inputs: Sequence[Path],
    read: Callable[[Path], T],
    make: Callable[[], T],
    settings: Mapping[str, Any] | None = None,
) -> T:
    """Return the content of a file: `read` it if it is current, otherwise `make` and write it, and note its inputs."""
    if is_current(file, note, inputs, settings):
        say(f"{file}: made from the same files{' with the same settings' if settings else ''}, reused")
        return read(file)
    now = MadeFrom.of(inputs, settings)  # before it is made, because an input may change meanwhile
    file.parent.mkdir(parents=True, exist_ok=True)
    content = make()
    records.write(note, now)
    return content
