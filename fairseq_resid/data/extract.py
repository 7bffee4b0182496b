"""Extract texts from archives and markup as plain files with one sentence per line; other files stay unchanged.

An archive with a member outside its folder is refused, and links are never followed. The unpacked size is limited. Only
the requested texts are written, under names that we choose.

Formats by name: .tgz .tar.gz .tar.xz .tar .zip (archives), .gz (one compressed text), .sgm .xml (segments of a WMT or
IWSLT test set), train.tags.* (IWSLT training text with <tag> lines). Any other text is copied unchanged.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, Any
from xml.sax.saxutils import unescape

from ..cli.progress import Progress, amount
from ..files import open_any_size, replacing

BLOCK = 1 << 20
LEADS_OUT = "leads outside the archive's folder; it is not used"
MEMBERS = 2_000_000  # most members per archive
DEPTH = 32  # most folders above a member
HEADER_BYTES = 1 << 16  # largest extended tar header: it holds a path, and tarfile reads it into memory
# An archive or .gz may unpack to this many times its size, or to this many bytes if that is more. Text typically
# expands about 4 times.
UNPACKED_FACTOR = 100
UNPACKED_BYTES = 1 << 30
# Counted per member, file and folder in addition to its content: hundreds of thousands of empty files fill a disk, too.
FILE_BYTES = 8192
MARKUP_BYTES = 1 << 28  # largest marked-up test set, because it is read into memory
GZIP = b"\x1f\x8b"  # first bytes of a gzip file
XZ = b"\xfd7zXZ\0"  # first bytes of an xz file
BZ2 = b"BZh"  # first bytes of a bzip2 file
DECOMPRESSED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    GZIP: lambda file: gzip.GzipFile(fileobj=file),
    XZ: lzma.LZMAFile,
    BZ2: bz2.BZ2File,
}
# These expressions, like all others for foreign text, take time proportional to its length, whatever it contains.
SEGMENT, END_OF_SEGMENT = re.compile(r"<seg\b[^<>]*>", re.IGNORECASE), re.compile("</seg>", re.IGNORECASE)
# White space used to lay out markup. A no-break space is part of the sentence.
LAYOUT = re.compile(r"[ \t\r\n\f\v]+")
# Lines of IWSLT training files that are not sentences: an element such as <url>...</url> that fills the line.
TAG_LINE = re.compile(rb"\s*<(\w+)( [^>]*)?>.*</\1>\s*")
PROLOG = re.compile(rb"\s*(<\?xml[^>]*>\s*)?", re.IGNORECASE)
BLANKS = re.compile(rb"\s*")
HTML = re.compile(rb"<(!doctype\s+)?html\b", re.IGNORECASE)


class Damaged(ValueError):
    """The content of a file is truncated or corrupt, or does not match the format in its name."""


def is_archive(name: str) -> bool:
    return name.endswith((".tgz", ".tar.gz", ".tar.xz", ".tar", ".zip"))


def is_tagged(name: str) -> bool:
    """Return whether a text is IWSLT training text, which contains <tag> lines."""
    return PurePosixPath(name).name.startswith("train.tags.")


def is_plain(name: str) -> bool:
    """Return whether a text already has one sentence per line and needs no conversion."""
    return not name.endswith((".gz", ".sgm", ".xml")) and not is_tagged(name)


def extract(archive: Path, wanted: Mapping[str, Path], limit: int | None = None) -> None:
    """Extract texts from an archive; `wanted` maps each member to its output file.

    All outputs appear together after the archive has been read to the end and its checksums match: for gzip and xz the
    checksum of the whole archive, for zip those of the wanted members. With `limit`, only that many lines of each text
    are written and reading stops there, so the rest of the archive is not checked.
    Raises: Damaged naming the archive; ValueError naming archive and member if one is missing or not allowed.
    """
    left, seen = dict(wanted), []
    with ExitStack() as outputs, _reading(archive) as members:
        room = _Room(archive)  # apart from the one that limits what is read
        for name, is_folder, open_member in members:
            seen.append(name)
            if name not in left:
                continue
            if is_folder:
                raise ValueError(f"{archive}: member {name!r} is not a regular file")
            with open_member() as opened:
                write_text(opened, name, outputs.enter_context(replacing(left.pop(name))), room, limit)
            if not left and limit is not None:
                break
        if left:
            # An uncompressed tar that was truncated between two members looks complete.
            size = f"{archive.stat().st_size:,} bytes; is it complete?"
            raise ValueError(f"{archive} ({size}): member {', '.join(left)} is missing; it contains {_some(seen)}")


def unpack(archive: Path, folder: Path) -> None:
    """Extract every file of an archive to FOLDER, unchanged and under its own name.

    Raises: Damaged naming the archive; ValueError naming archive and member if one appears twice or is not allowed.
    """
    with _reading(archive) as members:
        room = _Room(archive)
        for name, is_folder, open_member in members:
            if is_folder:
                continue
            target = folder / name
            if target.exists():
                raise ValueError(f"{archive}: member {name} appears twice")
            try:
                room.make_folders(target.parent)
            except (FileExistsError, NotADirectoryError):
                raise ValueError(f"{archive}: member {name} is inside another member, which is a file") from None
            with open_member() as opened:
                room.write(iter(partial(opened.read, BLOCK), b""), target)


class _Room:
    """Limits the total unpacked size of a packed file, because a small one can unpack to any size."""

    def __init__(self, packed: Path) -> None:
        self.packed, self.most = packed, max(UNPACKED_BYTES, UNPACKED_FACTOR * packed.stat().st_size)
        self.taken = 0

    def write(self, blocks: Iterable[bytes], output: Path) -> None:
        """Write a file.

        Raises: ValueError naming the packed file if the total exceeds the limit.
        """
        self.take(FILE_BYTES)
        with output.open("wb") as file:
            for block in blocks:
                self.take(len(block))
                file.write(block)

    def make_folders(self, folder: Path) -> None:
        """Create a folder and its parents where they are missing. Raises: see `write`; OSError."""
        self.take(FILE_BYTES * sum(1 for _ in takewhile(lambda parent: not parent.exists(), (folder, *folder.parents))))
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, size: int) -> None:
        self.taken += size
        if self.taken > self.most:
            raise ValueError(
                f"{self.packed}: unpacks to more than {amount(self.most, 'B')}; if you trust it, unpack it yourself "
                "and pass the folder with --raw"
            )


class _Unpacked(io.BufferedIOBase):
    """A decompressed stream whose total size is limited, whether or not what is read gets written."""

    def __init__(self, stream: Any, room: _Room) -> None:
        self.stream, self.room = stream, room

    def read(self, size: int | None = -1) -> bytes:
        return self._taken(self.stream.read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._taken(self.stream.readline(size))

    def _taken(self, block: bytes) -> bytes:
        self.room.take(len(block))
        return block


class _Header(tarfile.TarInfo):
    """A tar header whose processing needs little memory: tarfile reads extended headers and maps of holes whole."""

    def _proc_member(self, members: tarfile.TarFile) -> tarfile.TarInfo:
        extended = not (self.isfile() or self.isdir() or self.isdev() or self.issym() or self.islnk())
        if extended and self.size > HEADER_BYTES:
            raise tarfile.HeaderError(f"a header of {self.size:,} bytes; at most {HEADER_BYTES:,} are read")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_holes()
        return super()._proc_member(members)  # type: ignore[misc]

    def _refuse_holes(self, *_: object) -> None:
        raise tarfile.HeaderError("a file with holes (tar --sparse)")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_holes


Member = tuple[str, bool, Callable[[], IO[bytes]]]  # name, whether it is a folder, function that opens a regular file


@contextmanager
def _reading(archive: Path) -> Iterator[Iterator[Member]]:
    """Open an archive and yield an iterator over its members. Use each member before advancing to the next.

    Raises: Damaged naming the archive, possibly on exit; ValueError naming a member that is not allowed: its name or
    link target is outside the archive's folder, it is neither a file nor a folder, or there are too many members.
    """
    with (
        _damage_named(archive),
        open_any_size(archive) as file,
        Progress(f"extract {archive.name}", archive.stat().st_size, "B") as progress,
    ):
        if is_web_page(file.read(BLOCK)):
            raise Damaged(f"{archive}: is a web page, not an archive")
        file.seek(0)
        room = _Room(archive)
        members = _zipped(file, progress) if archive.name.endswith(".zip") else _tarred(archive, file, progress, room)
        yield _allowed(archive, members, room)


def _allowed(archive: Path, members: Iterator[Member], room: _Room) -> Iterator[Member]:
    for number, (name, is_folder, open_member) in enumerate(members):
        room.take(FILE_BYTES)
        parts = PurePosixPath(name).parts
        if number == MEMBERS:
            raise ValueError(f"{archive}: has more than {MEMBERS:,} members")
        if name.startswith("/") or ".." in parts:
            raise ValueError(f"{archive}: member {name!r} {LEADS_OUT}")
        if len(parts) > DEPTH + 1:
            raise ValueError(
                f"{archive}: member {name[:80]!r}… is {len(parts) - 1} folders deep; at most {DEPTH} are allowed"
            )
        yield str(PurePosixPath(name)), is_folder, open_member


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Convert errors caused by damaged compression or archives to Damaged. Disk errors are raised unchanged."""
    try:
        yield
    except tarfile.FilterError as error:
        said = "is not a regular file" if isinstance(error, tarfile.SpecialFileError) else LEADS_OUT
        raise ValueError(f"{path}: member {error.tarinfo.name!r} {said}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        # Disk errors have an errno. EINVAL: a damaged zip points to an offset before the beginning of the file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise Damaged(f"{path}: damaged or truncated ({error})") from None
    except RuntimeError as error:  # a zip with a password or an unsupported compression method
        raise ValueError(f"{path}: cannot be read: {error}") from None


def is_web_page(beginning: bytes) -> bool:
    """Return whether a file begins like HTML: some servers send a web page instead of the file."""
    start = PROLOG.match(beginning).end()  # type: ignore[union-attr]  # it matches the empty string
    while beginning.startswith(b"<!--", start):
        end = beginning.find(b"-->", start)
        if end < 0:
            return False
        start = BLANKS.match(beginning, end + len(b"-->")).end()  # type: ignore[union-attr]
    return HTML.match(beginning, start) is not None


def instead(name: str, beginning: bytes) -> str | None:
    """Describe what a file really is, judging by its first bytes; None if they match the format in its name."""
    if not beginning:
        return "an empty file"
    if is_web_page(beginning):
        return "a web page"
    is_gzip, is_tar, is_zip = beginning.startswith(GZIP), beginning[257:262] == b"ustar", beginning.startswith(b"PK")
    if name.endswith(".zip"):
        fits = is_zip
    elif name.endswith(".xz"):
        fits = beginning.startswith(XZ)
    elif is_archive(name):
        fits = is_gzip or is_tar
    else:
        fits = is_gzip == name.endswith(".gz")  # a text never begins with the bytes of a gzip header
    return None if fits else "data of another format"


class _Counted:
    """A file that advances the progress bar as it is read."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self.file, self.progress = file, progress

    def read(self, size: int = -1) -> bytes:
        block = self.file.read(size)
        self.progress.advance(len(block))
        return block


def _zipped(file: IO[bytes], progress: Progress) -> Iterator[Member]:
    with zipfile.ZipFile(file) as opened:
        for item in opened.infolist():
            yield item.filename, item.is_dir(), partial(opened.open, item)
            progress.advance(item.compress_size)


def _tarred(archive: Path, file: IO[bytes], progress: Progress, room: _Room) -> Iterator[Member]:
    counted: IO[bytes] = _Counted(file, progress)  # type: ignore[assignment]
    beginning = file.read(len(XZ))
    file.seek(0)
    # Decompressed here, because tarfile's streams do not notice a truncated end or check the checksum stored there.
    stream = next((opened(counted) for magic, opened in DECOMPRESSED.items() if beginning.startswith(magic)), counted)
    unpacked: Any = _Unpacked(stream, room)
    with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as members:
        while (member := members.next()) is not None:
            tarfile.data_filter(member, str(archive))  # refuses devices, pipes and links to the outside
            yield member.name, member.isdir(), partial(_open_tarred, members, member)
            members.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header
        # The tar ends before the stream does, and the checksum is only compared at the end of the stream.
        while members.fileobj.read(BLOCK):
            pass


def _open_tarred(members: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    opened = members.extractfile(member) if member.isfile() else None  # extractfile would follow links
    if opened is None:
        raise tarfile.SpecialFileError(member)
    return opened


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"


def write_text(stream: IO[bytes], name: str, output: Path, room: _Room, limit: int | None = None) -> None:
    """Write a text, decompressed and without markup, depending on the format in its name.

    Raises: ValueError naming the text if its format is invalid; decompression errors.
    """
    room.write(_blocks(stream, name, room, limit), output)


def _blocks(stream: Any, name: str, room: _Room, limit: int | None) -> Iterator[bytes]:
    if name.endswith(".gz"):
        with gzip.open(stream) as opened:
            yield from _blocks(_Unpacked(opened, _Room(room.packed)), name[: -len(".gz")], room, limit)
        return
    if name.endswith((".sgm", ".xml")):
        markup = stream.read(MARKUP_BYTES + 1)
        if len(markup) > MARKUP_BYTES:
            raise ValueError(f"{name}: more than {MARKUP_BYTES:,} bytes of markup")
        yield from ((line + "\n").encode() for line in segments(markup, name)[:limit])
    elif is_tagged(name) or limit is not None:
        kept = 0
        for line in iter(partial(stream.readline, BLOCK), b""):  # a longer line arrives in pieces
            if kept == limit:
                break
            if not (is_tagged(name) and TAG_LINE.fullmatch(line)):
                kept += line.endswith(b"\n")
                yield line
    else:
        while block := stream.read(BLOCK):
            yield block


def segments(markup: bytes, name: str) -> list[str]:
    """Return the text of every <seg> of an SGM or XML test set, with runs of ASCII white space collapsed.

    Unlike sacrebleu, it keeps no-break spaces and replaces `&amp;` and the other XML entities, because they are markup.
    Raises: ValueError naming the file if it is not UTF-8 or contains no segments.
    """
    try:
        text = markup.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None
    pieces = END_OF_SEGMENT.split(text)[:-1]
    starts = map(SEGMENT.search, pieces)
    found = [
        LAYOUT.sub(" ", undo_entities(piece[start.end() :])).strip(" ")
        for piece, start in zip(pieces, starts, strict=True)
        if start is not None
    ]
    if not found:
        raise ValueError(f"{name}: contains no <seg>")
    return found


def undo_entities(text: str) -> str:
    """Replace the five XML entities by their characters."""
    return unescape(text, {"&quot;": '"', "&apos;": "'"})


def convert(path: Path, name: str, output: Path, limit: int | None = None) -> None:
    """Like `write_text`, for a file on disk. OUTPUT appears when it is complete; with `limit`, the rest is not checked.

    Raises: Damaged naming the file; ValueError.
    """
    with _damage_named(path), open_any_size(path) as stream, replacing(output) as unfinished:
        write_text(stream, name, unfinished, _Room(path), limit)
