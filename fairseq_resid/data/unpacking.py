"""Read untrusted archives and compressed files in linear time, and limit the size of the output.

Python's `tarfile` is only used to decode individual headers. Otherwise it would read extended headers of any size into
memory, and some hostile ones in quadratic time. Sparse members and links are never unpacked.
"""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..cli.progress import Progress, amount

BLOCK = 1 << 20
READ = 1 << 16  # bytes of compressed input per read; the unused ones are copied after each compressed stream
MEMBERS = 2_000_000  # maximum number of members per archive
# An archive or .gz may unpack to this many times its size, or to UNPACKED_BYTES if that is more. Text typically
# expands to about 4 times its compressed size.
UNPACKED_FACTOR = 100
UNPACKED_BYTES = 1 << 30
# This size is counted for every member, header, folder and compressed stream in addition to its content, because
# hundreds of thousands of empty ones would fill a disk or take minutes to read.
FILE_BYTES = 8192
NAME_BYTES, NAME_PARTS, PART_BYTES = 1024, 32, 255  # limits on a member's name: bytes, parts, bytes per part
HEADER_BYTES, PAX_RECORDS = 1 << 16, 100  # limits on an extended header in a tar: a long name, extended attributes
DIRECTORY_BYTES = 1 << 26  # limit on a zip's list of members, which is kept in memory
XZ_MEMORY = 1 << 28  # limit on the memory for decompressing xz; `xz -9` needs a quarter of it
LEADS_OUT = "leads outside the archive's folder; the archive is refused"
NOT_A_FILE = "is not a regular file"
UNIX = 3  # in a zip: the system whose file types are recorded

GZIP = b"\x1f\x8b"  # first bytes of a gzip file
XZ = b"\xfd7zXZ\0"  # first bytes of an xz file
DECOMPRESSORS: dict[bytes, Callable[[], Any]] = {
    GZIP: lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    XZ: lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY),
    b"BZh": bz2.BZ2Decompressor,
}


@dataclass(frozen=True)
class Member:
    """A member of an archive: its name, and the function that opens it (None if it is not a regular file).

    refused: the reason why this member makes the whole archive unusable
    """

    name: str
    open: Callable[[], IO[bytes]] | None = None
    is_folder: bool = False
    refused: str | None = None


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

    def take(self, size: int = FILE_BYTES) -> None:
        """Count bytes that were unpacked. The default size is charged for a file, folder, header or compressed stream.

        Raises: ValueError naming the packed file if the total exceeds the limit.
        """
        self.taken += size
        if self.taken > self.most:
            raise ValueError(
                f"{self.packed}: unpacks to more than {amount(self.most, 'B')}; if you trust it, unpack it yourself "
                "and pass the folder with --raw"
            )


class _Reader(io.RawIOBase):
    """A stream of the bytes from `produce(size)`, which returns up to `size` bytes per call, and none at the end."""

    def __init__(self, produce: Callable[[int], bytes]) -> None:
        self.produce = produce

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.produce(len(buffer))
        buffer[: len(block)] = block
        return len(block)


def decompressed(file: IO[bytes], room: Room, magic: bytes = GZIP) -> io.BufferedReader:
    """Return the decompressed content of a file with one or more compressed streams, possibly padded with zeros.

    Reading raises: EOFError if the file is truncated; the errors of the decompressor and of `Room.take`.
    """
    return io.BufferedReader(_Reader(_Decompression(file, room, DECOMPRESSORS[magic]).produce), BLOCK)


class _Decompression:
    def __init__(self, file: IO[bytes], room: Room, new: Callable[[], Any]) -> None:
        self.file, self.room, self.new = file, room, new
        self.decompressor, self.rest, self.is_full = new(), b"", False

    def produce(self, size: int) -> bytes:
        while True:
            if self.decompressor.eof and not self._begin():
                return b""
            if not self.rest and not self.is_full:
                self.rest = self.file.read(READ)
                if not self.rest:
                    raise EOFError("the compressed data ends early")
            block: bytes = self.decompressor.decompress(self.rest, size)
            # zlib returns the input that it did not use; the other decompressors keep it.
            self.rest = getattr(self.decompressor, "unconsumed_tail", b"")
            self.is_full = len(block) == size
            if block:
                self.room.take(len(block))
                return block

    def _begin(self) -> bool:
        """Begin the next compressed stream; return whether there is one."""
        rest: bytes = self.decompressor.unused_data.lstrip(b"\0")
        while not rest:
            block = self.file.read(READ)
            if not block:
                return False
            rest = block.lstrip(b"\0")
        self.room.take()
        self.decompressor, self.rest, self.is_full = self.new(), rest, False
        return True


def _counted(file: IO[bytes], progress: Progress) -> io.BufferedReader:
    """Return a file that advances the progress bar as it is read."""

    def produce(size: int) -> bytes:
        block = file.read(size)
        progress.advance(len(block))
        return block

    return io.BufferedReader(_Reader(produce), READ)


def members(archive: Path, file: IO[bytes], room: Room, progress: Progress) -> Iterator[Member]:
    """Yield the members of an archive. Use each member before advancing to the next.

    Raises: ValueError naming the archive and member if it is not allowed: its name or link target is outside the
    archive's folder, its name is too long, it is neither a file nor a folder, or there are too many members; see
    `damage_named`.
    """
    found = _zipped(file, room, progress) if archive.name.endswith(".zip") else _tarred(file, room, progress)
    for number, member in enumerate(found):
        if number == MEMBERS:
            raise ValueError(f"{archive}: has more than {MEMBERS:,} members")
        if refused := _name_problem(member.name) or member.refused:
            raise ValueError(f"{archive}: member {shortened(member.name)} {refused}")
        name = str(PurePosixPath(member.name))
        if name == "." and not member.is_folder:
            raise ValueError(f"{archive}: member {member.name!r} has no name")
        room.take()
        yield replace(member, name=name)


def shortened(name: str) -> str:
    """Return a member's name for messages."""
    return repr(name) if len(name) <= 200 else f"{name[:100]!r}..."


def _name_problem(name: str) -> str | None:
    raw = name.encode("utf-8", "surrogateescape").rstrip(b"/")
    parts = raw.split(b"/")
    if name.startswith("/") or b".." in parts:
        return LEADS_OUT
    if len(raw) > NAME_BYTES or len(parts) > NAME_PARTS or max(map(len, parts)) > PART_BYTES:
        return f"has too long a name: must be at most {NAME_BYTES:,} bytes in {NAME_PARTS} parts of {PART_BYTES} bytes"
    return "has a NUL byte in its name" if "\0" in name else None


class _ZipFile(io.BufferedReader):
    """A zip file whose list of members, which `zipfile` reads at once, is limited in size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a list of members with {size:,} bytes: must be at most {DIRECTORY_BYTES:,}")
        return super().read(size)


def _zipped(file: IO[bytes], room: Room, progress: Progress) -> Iterator[Member]:
    with zipfile.ZipFile(_ZipFile(file)) as opened:  # type: ignore[arg-type]
        for item in opened.infolist():
            kind = stat.S_IFMT(item.external_attr >> 16) if item.create_system == UNIX else 0
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                yield Member(item.filename, refused=NOT_A_FILE)
            elif item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # With other methods, `zipfile` may decompress a block of any size at once.
                yield Member(item.filename, refused=f"has an unsupported compression method ({item.compress_type})")
            elif item.filename.endswith("/"):
                yield Member(item.filename, is_folder=True)
            else:
                yield Member(item.filename, partial(_charged, partial(opened.open, item), room))
            progress.advance(item.compress_size)


def _charged(open_member: Callable[[], IO[bytes]], room: Room) -> IO[bytes]:
    file = open_member()

    def produce(size: int) -> bytes:
        block = file.read(size)
        room.take(len(block))
        return block

    return io.BufferedReader(_Reader(produce), BLOCK)


def _tarred(file: IO[bytes], room: Room, progress: Progress) -> Iterator[Member]:
    beginning = file.read(len(XZ))
    file.seek(0)
    counted = _counted(file, progress)
    magic = next((magic for magic in DECOMPRESSORS if beginning.startswith(magic)), None)
    stream = decompressed(counted, room, magic) if magic else counted
    yield from _Tar(stream, room).members()
    # The tar ends before the stream does, and the checksum is only compared at the end of the stream.
    while stream.read(BLOCK):
        pass


class _Tar:
    def __init__(self, stream: io.BufferedReader, room: Room) -> None:
        self.stream, self.room = stream, room
        self.left = self.padding = 0  # bytes of the current content, and of the padding after it

    def members(self) -> Iterator[Member]:
        if not self.stream.peek(1):
            raise tarfile.ReadError("empty file")
        while (header := self._header()) is not None:
            is_link = header.issym() or header.islnk()
            # As in tarfile, links and folders have no content, whatever size their header states.
            self._enter(0 if is_link or header.isdir() else header.size)
            if is_link and _links_out(header):
                yield Member(header.name, refused=LEADS_OUT)
            elif header.isdev() or header.type == tarfile.GNUTYPE_SPARSE:
                yield Member(header.name, refused=NOT_A_FILE)
            else:
                yield Member(header.name, self._open if header.isreg() else None, header.isdir())
            self._skip()

    def _header(self) -> tarfile.TarInfo | None:
        """Return the header of the next member, updated with the extended headers that precede it; None at the end.

        Global extended headers are ignored, because no tool writes names or sizes there.
        """
        extended: dict[str, str] = {}
        while True:
            block = self.stream.read(tarfile.BLOCKSIZE)
            if not extended and (not block or block == bytes(tarfile.BLOCKSIZE)):  # a tar may lack its end mark
                return None
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            self.room.take()
            if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                key = "path" if header.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
                extended[key] = _text(self._extended(header).partition(b"\0")[0])
            elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extended |= _pax_records(self._extended(header))
            elif header.type == tarfile.XGLTYPE:
                self._extended(header)
            else:
                header.name = extended.get("path", header.name)
                header.linkname = extended.get("linkpath", header.linkname)
                header.size = _number(extended["size"]) if "size" in extended else header.size
                if any(key.startswith("GNU.sparse.") for key in extended):
                    header.type = tarfile.GNUTYPE_SPARSE
                if header.size < 0:
                    raise tarfile.ReadError("a member has a negative size")
                return header

    def _extended(self, header: tarfile.TarInfo) -> bytes:
        if not 0 <= header.size <= HEADER_BYTES:
            raise tarfile.ReadError(f"an extended header of {header.size:,} bytes; must be at most {HEADER_BYTES:,}")
        self._enter(header.size)
        content = b"".join(iter(lambda: self._read(BLOCK), b""))
        self._skip()
        return content

    def _enter(self, size: int) -> None:
        self.left, self.padding = size, -size % tarfile.BLOCKSIZE

    def _read(self, size: int) -> bytes:
        block = self.stream.read(min(size, self.left))
        if self.left and not block:
            raise EOFError("the archive ends within a member")
        self.left -= len(block)
        return block

    def _skip(self) -> None:
        while self._read(BLOCK):
            pass
        self.left, self.padding = self.padding, 0
        while self._read(BLOCK):
            pass

    def _open(self) -> IO[bytes]:
        return io.BufferedReader(_Reader(self._read))


def _links_out(link: tarfile.TarInfo) -> bool:
    """Return whether a link, which is never followed, leads out of the archive."""
    # A hard link names another member; the target of a symbolic link is relative to the folder that contains it.
    target = posixpath.join(posixpath.dirname(link.name), link.linkname) if link.issym() else link.linkname
    return posixpath.isabs(target) or posixpath.normpath(target).split("/", 1)[0] == ".."


def _pax_records(content: bytes) -> dict[str, str]:
    """Return the fields of an extended header: records of the form "LENGTH KEY=VALUE\\n"."""
    found: dict[str, str] = {}
    place, length = 0, len(content.rstrip(b"\0"))
    while place < length:
        space = content.find(b" ", place, place + 8)
        end = place + _number(_text(content[place:space])) if space > 0 else 0
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if end <= space or content[end - 1 : end] != b"\n" or not equals or len(found) == PAX_RECORDS:
            raise tarfile.ReadError("invalid extended header")
        found[_text(key)] = _text(value)
        place = end
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise tarfile.ReadError("invalid number in an extended header")
    return int(text)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
