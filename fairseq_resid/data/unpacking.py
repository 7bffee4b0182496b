"""Read archives and compressed files.

Links and special files are never opened, and an archive with a name that leads out of its folder is refused. Nothing
here relies on the extraction filters of `tarfile`, because those of Python before 3.13.4 can be evaded.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..cli.progress import Progress

BLOCK = 1 << 20
NOT_A_FILE = "is not a regular file"

# Functions that open a compressed file, by its first bytes.
DECOMPRESSORS: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


@dataclass(frozen=True)
class Member:
    """A member of an archive: its name, and the function that opens it (None if it is not a regular file)."""

    name: str
    open: Callable[[], IO[bytes]] | None = None
    is_folder: bool = False


class Damaged(ValueError):
    """The content of a file is truncated or corrupt, or does not match the format in its name."""


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Convert errors caused by damaged archives or compressed data to Damaged. Disk errors are raised unchanged."""
    try:
        yield
    # A zip with a password or an unknown compression method raises RuntimeError.
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Damaged(f"{path}: damaged or truncated ({error})") from None


class _Watched(io.FileIO):
    """A file that shows how much of it has been read."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self.progress = progress

    def readinto(self, buffer: Any) -> int | None:
        size = super().readinto(buffer)
        self.progress.advance(max(0, self.tell() - self.progress.done))
        return size


def members(archive: Path, progress: Progress) -> Iterator[Member]:
    """Yield the members of an archive. Use each member before advancing to the next.

    Raises: ValueError naming the archive and member if its name leads outside the archive's folder; see `damage_named`.
    """
    for member in _zipped(archive, progress) if archive.name.endswith(".zip") else _tarred(archive, progress):
        if member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
            raise ValueError(f"{archive}: member {member.name!r} leads outside the archive's folder")
        yield member


def _zipped(archive: Path, progress: Progress) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for item in opened.infolist():
            is_file = stat.S_IFMT(item.external_attr >> 16) in (0, stat.S_IFREG) and not item.is_dir()
            name = str(PurePosixPath(item.filename))
            yield Member(name, partial(opened.open, item) if is_file else None, item.is_dir())
            progress.advance(item.compress_size)


class _Header(tarfile.TarInfo):
    """A header of a tar. Without this class, `tarfile` would take a damaged header for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):  # the end of the archive
                raise
            raise tarfile.ReadError(str(error)) from None


def _tarred(archive: Path, progress: Progress) -> Iterator[Member]:
    with io.BufferedReader(_Watched(archive, progress), 1 << 16) as stream:
        beginning = stream.peek(6)
        magic = next((magic for magic in DECOMPRESSORS if beginning.startswith(magic)), None)
        content: Any = DECOMPRESSORS[magic](stream) if magic else stream
        with tarfile.open(fileobj=content, mode="r|", tarinfo=_Header) as opened:
            for item in opened:
                opener = partial(opened.extractfile, item) if item.isreg() else None
                yield Member(str(PurePosixPath(item.name)), opener, item.isdir())  # type: ignore[arg-type]
        # The tar ends before the stream does, and the checksum is only compared at the end of the stream.
        while content.read(BLOCK):
            pass
