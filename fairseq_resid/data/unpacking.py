"""Read archives and compressed files, with a limit on the size of what they unpack to.

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
# An archive or .gz may unpack to this many times its size, or to UNPACKED_BYTES if that is more. Text typically
# expands to about 4 times its compressed size.
UNPACKED_FACTOR = 100
UNPACKED_BYTES = 1 << 30
NOT_A_FILE = "is not a regular file"

# Functions that open a compressed file, by its first bytes.
DECOMPRESSORS: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


@dataclass(frozen=True)
class Member:
    """A member of an archive: its name and size, and the function that opens it (None if it is not a regular file)."""

    name: str
    size: int
    open: Callable[[], IO[bytes]] | None = None
    is_folder: bool = False


class Damaged(ValueError):
    """The content of a file is truncated or corrupt, or does not match the format in its name."""


class Room:
    """Limits the total unpacked size of a packed file, because a small one can unpack to any size."""

    def __init__(self, packed: Path) -> None:
        self.packed, self.left = packed, max(UNPACKED_BYTES, UNPACKED_FACTOR * packed.stat().st_size)

    def take(self, size: int) -> None:
        """Count unpacked bytes. Raises: ValueError naming the packed file if there are too many."""
        self.left -= size
        if self.left < 0:
            raise ValueError(
                f"{self.packed}: unpacks to over {UNPACKED_BYTES >> 30} GB and over {UNPACKED_FACTOR} times its size; "
                "if you trust it, unpack it yourself and pass the folder with --raw"
            )


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

    Raises: ValueError naming the archive, if the name of a member leads outside the archive's folder or the members
    are too large; see `damage_named`.
    """
    room = Room(archive)
    for member in _zipped(archive, progress) if archive.name.endswith(".zip") else _tarred(archive, progress):
        if member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
            raise ValueError(f"{archive}: member {member.name!r} leads outside the archive's folder")
        room.take(member.size)
        yield member


def _zipped(archive: Path, progress: Progress) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for item in opened.infolist():
            is_file = stat.S_IFMT(item.external_attr >> 16) in (0, stat.S_IFREG) and not item.is_dir()
            name = str(PurePosixPath(item.filename))
            yield Member(name, item.file_size, partial(opened.open, item) if is_file else None, item.is_dir())
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
                name = str(PurePosixPath(item.name))
                yield Member(name, item.size, opener, item.isdir())  # type: ignore[arg-type]
        # The tar ends before the stream does, and the checksum is only compared at the end of the stream.
        while content.read(BLOCK):
            pass
