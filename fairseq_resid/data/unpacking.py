"""Read archives and compressed files, with a limit on the size of what they unpack to.

Links and special files are never opened, and an archive with a name that leads out of its folder is refused. Nothing
here relies on the extraction filters of `tarfile`, because those of Python before 3.13.4 can be evaded.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..cli.progress import Progress, amount

BLOCK = 1 << 20
READ = 1 << 16  # bytes of compressed input per read
# An archive or .gz may unpack to this many times its size, or to UNPACKED_BYTES if that is more. Text typically
# expands to about 4 times its compressed size.
UNPACKED_FACTOR = 100
UNPACKED_BYTES = 1 << 30
NOT_A_FILE = "is not a regular file"

GZIP = b"\x1f\x8b"  # first bytes of a gzip file
XZ = b"\xfd7zXZ\0"  # first bytes of an xz file
DECOMPRESSORS: dict[bytes, Callable[[Any], Any]] = {
    GZIP: lambda file: gzip.GzipFile(fileobj=file),
    XZ: lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
}


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
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        # EINVAL means that a damaged zip points to a position before the file's start. Disk errors have other numbers.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise Damaged(f"{path}: damaged or truncated ({error})") from None
    except (struct.error, OverflowError, UnicodeDecodeError) as error:  # from zipfile, which does not check every field
        raise Damaged(f"{path}: damaged or truncated ({error})") from None
    except RuntimeError as error:  # a zip with a password or an unsupported compression method
        raise ValueError(f"{path}: cannot be read: {error}") from None


class Room:
    """Limits the total unpacked size of a packed file, because a small one can unpack to any size."""

    def __init__(self, packed: Path) -> None:
        self.packed, self.most = packed, max(UNPACKED_BYTES, UNPACKED_FACTOR * packed.stat().st_size)
        self.taken = 0

    def take(self, size: int) -> None:
        """Count bytes that were unpacked.

        Raises: ValueError naming the packed file if the total exceeds the limit.
        """
        self.taken += size
        if self.taken > self.most:
            raise ValueError(
                f"{self.packed}: unpacks to more than {amount(self.most, 'B')}; if you trust it, unpack it yourself "
                "and pass the folder with --raw"
            )


class _Counted(io.RawIOBase):
    def __init__(self, file: Any, count: Callable[[int], object]) -> None:
        self.file, self.count = file, count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.file.read1(len(buffer))
        buffer[: len(block)] = block
        self.count(len(block))
        return len(block)


def _counted(file: Any, count: Callable[[int], object], size: int = BLOCK) -> io.BufferedReader:
    """Return a stream of the bytes of a file that passes the number of bytes of every read to `count`."""
    return io.BufferedReader(_Counted(file, count), size)


def decompressed(file: IO[bytes], room: Room, magic: bytes = GZIP) -> io.BufferedReader:
    """Return the decompressed content of a file with one or more compressed streams.

    Reading raises: EOFError if the file is truncated; the errors of the decompressor and of `Room.take`.
    """
    return _counted(DECOMPRESSORS[magic](file), room.take)


def members(archive: Path, file: IO[bytes], room: Room, progress: Progress) -> Iterator[Member]:
    """Yield the members of an archive. Use each member before advancing to the next.

    Raises: ValueError naming the archive and member if its name leads outside the archive's folder; see `damage_named`.
    """
    found = _zipped(file, room, progress) if archive.name.endswith(".zip") else _tarred(file, room, progress)
    for member in found:
        if member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
            raise ValueError(f"{archive}: member {shortened(member.name)} leads outside the archive's folder")
        yield member


def shortened(name: str) -> str:
    """Return a member's name for messages."""
    return repr(name) if len(name) <= 200 else f"{name[:100]!r}..."


def _zipped(file: IO[bytes], room: Room, progress: Progress) -> Iterator[Member]:
    with zipfile.ZipFile(file) as opened:
        for item in opened.infolist():
            is_file = stat.S_IFMT(item.external_attr >> 16) in (0, stat.S_IFREG) and not item.is_dir()
            name = str(PurePosixPath(item.filename))
            yield Member(name, partial(_unzip, opened, item, room) if is_file else None, item.is_dir())
            progress.advance(item.compress_size)


def _unzip(opened: zipfile.ZipFile, item: zipfile.ZipInfo, room: Room) -> IO[bytes]:
    return _counted(opened.open(item), room.take)


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


def _tarred(file: IO[bytes], room: Room, progress: Progress) -> Iterator[Member]:
    beginning = file.read(len(XZ))
    file.seek(0)
    stream = _counted(file, progress.advance, READ)
    if magic := next((magic for magic in DECOMPRESSORS if beginning.startswith(magic)), None):
        stream = decompressed(stream, room, magic)
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as opened:
        for item in opened:
            opener = partial(opened.extractfile, item) if item.isreg() and not item.issparse() else None
            yield Member(str(PurePosixPath(item.name)), opener, item.isdir())  # type: ignore[arg-type]
    # The tar ends before the stream does, and the checksum is only compared at the end of the stream.
    while stream.read(BLOCK):
        pass
