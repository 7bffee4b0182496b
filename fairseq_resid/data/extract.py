"""Texts out of archives and markup, as plain files of one sentence a line; other files out of archives as they are.

An archive with a member that climbs out of its folder is refused, and links are never followed. The size of what is
unpacked is bounded. Of texts only the wanted members are written, under names of our own.

Formats by name: .tgz .tar.gz .tar.xz .tar .zip (archives), .gz (one text, compressed), .sgm .xml (segments of a WMT or
IWSLT test set), train.tags.* (IWSLT's training text with <tag> lines), anything else as it is.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any
from xml.sax.saxutils import unescape

from ..cli.progress import Progress, amount
from ..files import open_any_size, replacing

BLOCK = 1 << 20
LEADS_OUT = "leads out of the archive's folder; it is not used"
MEMBERS = 2_000_000  # of an archive
UNPACKED_FACTOR = 100  # an archive and a .gz are unpacked to no more than so many times their size,
UNPACKED_BYTES = 1 << 30  # or to so many bytes. Text becomes some 4 times as large.
FILE_BYTES = 8192  # that a file counts beyond its content: hundreds of thousands of empty ones fill a disk, too
MARKUP_BYTES = 1 << 28  # of a test set, which is read as a whole
GZIP = b"\x1f\x8b"  # how a gzip file begins
XZ = b"\xfd7zXZ\0"  # and an xz file
DECOMPRESSED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    GZIP: lambda file: gzip.GzipFile(fileobj=file),
    XZ: lzma.LZMAFile,
}
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
# What markup may be laid out with. A no-break space is part of the sentence.
LAYOUT = re.compile(r"[ \t\r\n\f\v]+")
# Lines of IWSLT's training files that are no sentences: <url>...</url> and so on, with nothing around.
TAG_LINE = re.compile(rb"\s*<(\w+)( [^>]*)?>.*</\1>\s*")
WEB_PAGE = re.compile(rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+)?html\b", re.DOTALL | re.IGNORECASE)


class Damaged(ValueError):
    """A file's content cannot be read to its end, or is not what the file's name says."""


def is_archive(name: str) -> bool:
    return name.endswith((".tgz", ".tar.gz", ".tar.xz", ".tar", ".zip"))


def is_tagged(name: str) -> bool:
    """Say whether a text is IWSLT's training text, whose <tag> lines are no sentences."""
    return PurePosixPath(name).name.startswith("train.tags.")


def is_plain(name: str) -> bool:
    """Say whether a text is one sentence a line as it is."""
    return not name.endswith((".gz", ".sgm", ".xml")) and not is_tagged(name)


def extract(archive: Path, wanted: Mapping[str, Path], limit: int | None = None) -> None:
    """Write members of an archive as texts: `wanted` says which, and to what file each goes.

    The texts appear together, when the archive has been read to its end and its checksums are right: those of gzip and
    xz of the whole archive, zip's of the wanted members. With `limit`, only so many lines of each are written, and
    reading stops there: the rest of the archive is not checked.
    Raises: Damaged naming the archive; ValueError naming archive and member if one is missing or not allowed.
    """
    left, seen = dict(wanted), []
    with ExitStack() as outputs, _reading(archive) as members:
        room = _Room(archive)
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
            # A tar without compression that was cut off between two members looks like a whole one.
            size = f"{archive.stat().st_size:,} bytes, is it whole?"
            raise ValueError(f"{archive} ({size}): member {', '.join(left)} is missing; it contains {_some(seen)}")


def unpack(archive: Path, folder: Path) -> None:
    """Write every file of an archive to FOLDER, as it is, under its own name.

    Raises: Damaged naming the archive; ValueError naming archive and member if one appears twice or not allowed.
    """
    with _reading(archive) as members:
        room = _Room(archive)
        for name, is_folder, open_member in members:
            if is_folder:
                continue
            target = folder / name
            if target.exists():
                raise ValueError(f"{archive}: member {name} appears twice")
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_member() as opened:
                room.write(iter(partial(opened.read, BLOCK), b""), target)


class _Room:
    """The bytes that a file may be unpacked to, in all: a small one can claim to hold any number."""

    def __init__(self, packed: Path) -> None:
        self.packed, self.most = packed, max(UNPACKED_BYTES, UNPACKED_FACTOR * packed.stat().st_size)
        self.written = 0

    def write(self, blocks: Iterable[bytes], output: Path) -> None:
        """Write a file.

        Raises: ValueError naming the packed file if it unpacks to too much.
        """
        self._take(FILE_BYTES)
        with output.open("wb") as file:
            for block in blocks:
                self._take(len(block))
                file.write(block)

    def _take(self, size: int) -> None:
        self.written += size
        if self.written > self.most:
            raise ValueError(
                f"{self.packed}: unpacks to more than {amount(self.most, 'B')}; if you trust it, unpack it yourself "
                "and name the folder with --raw"
            )


Member = tuple[str, bool, Callable[[], IO[bytes]]]  # its name, whether it is a folder, and what opens a plain file


@contextmanager
def _reading(archive: Path) -> Iterator[Iterator[Member]]:
    """Open an archive; yields its members, each to be used before the next one is asked for.

    Raises: Damaged naming the archive, also at the end; ValueError naming a member that is not allowed: it leads out of
    the archive's folder, by its name or as a link, it is neither file nor folder, or there are too many.
    """
    with (
        _damage_named(archive),
        open_any_size(archive) as file,
        Progress(f"extract {archive.name}", archive.stat().st_size, "B") as progress,
    ):
        if is_web_page(file.read(BLOCK)):
            raise Damaged(f"{archive}: is a web page, not an archive")
        file.seek(0)
        members = _zipped(file, progress) if archive.name.endswith(".zip") else _tarred(archive, file, progress)
        yield _allowed(archive, members)


def _allowed(archive: Path, members: Iterator[Member]) -> Iterator[Member]:
    for number, (name, is_folder, open_member) in enumerate(members):
        if number == MEMBERS:
            raise ValueError(f"{archive}: has more than {MEMBERS:,} members")
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{archive}: member {name!r} {LEADS_OUT}")
        yield str(PurePosixPath(name)), is_folder, open_member


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of damaged compression and archives into Damaged; the disk's errors are raised as they are."""
    try:
        yield
    except tarfile.FilterError as error:
        said = "is no plain file" if isinstance(error, tarfile.SpecialFileError) else LEADS_OUT
        raise ValueError(f"{path}: member {error.tarinfo.name!r} {said}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        # The disk's errors have a number. EINVAL: a damaged zip points before the file's beginning.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise Damaged(f"{path}: damaged or cut off ({error})") from None
    except RuntimeError as error:  # a zip with a password, or packed oddly
        raise ValueError(f"{path}: cannot be read: {error}") from None


def is_web_page(beginning: bytes) -> bool:
    """Say whether a file begins as HTML does: some servers send a web page in place of the file."""
    return WEB_PAGE.match(beginning) is not None


def instead(name: str, beginning: bytes) -> str | None:
    """Name what a file's beginning shows it to be; None if that can be what the file's name says."""
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
        fits = is_gzip == name.endswith(".gz")  # a text never begins as gzip does
    return None if fits else "data of another format"


class _Counted:
    """A file whose reading is shown as progress."""

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


def _tarred(archive: Path, file: IO[bytes], progress: Progress) -> Iterator[Member]:
    counted: IO[bytes] = _Counted(file, progress)  # type: ignore[assignment]
    beginning = file.read(len(XZ))
    file.seek(0)
    # Decompressed here, because tarfile's streams miss a cut-off end, and the checksum that stands there.
    stream = next((opened(counted) for magic, opened in DECOMPRESSED.items() if beginning.startswith(magic)), counted)
    with tarfile.open(fileobj=stream, mode="r|*") as members:
        while (member := members.next()) is not None:
            tarfile.data_filter(member, str(archive))  # refuses links that lead out, devices and pipes
            yield member.name, member.isdir(), partial(_open_tarred, members, member)
            members.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header
        # The tar ends before the stream does, and checksums are compared at the stream's end.
        while members.fileobj.read(BLOCK):
            pass


def _open_tarred(members: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    opened = members.extractfile(member) if member.isfile() else None  # it would follow links
    if opened is None:
        raise tarfile.SpecialFileError(member)
    return opened


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"


def write_text(stream: IO[bytes], name: str, output: Path, room: _Room, limit: int | None = None) -> None:
    """Write a text, decompressed and without markup, by the format that its name says.

    Raises: ValueError naming the text if its format is broken; errors of damaged compression.
    """
    room.write(_blocks(stream, name, limit), output)


def _blocks(stream: IO[bytes], name: str, limit: int | None) -> Iterator[bytes]:
    if name.endswith(".gz"):
        with gzip.open(stream) as opened:
            yield from _blocks(opened, name[: -len(".gz")], limit)  # type: ignore[arg-type]
        return
    if name.endswith((".sgm", ".xml")):
        markup = stream.read(MARKUP_BYTES + 1)
        if len(markup) > MARKUP_BYTES:
            raise ValueError(f"{name}: more than {MARKUP_BYTES:,} bytes of markup")
        yield from ((line + "\n").encode() for line in segments(markup, name)[:limit])
    elif is_tagged(name) or limit is not None:
        kept = 0
        for line in iter(partial(stream.readline, BLOCK), b""):  # a longer one in pieces
            if kept == limit:
                break
            if not (is_tagged(name) and TAG_LINE.fullmatch(line)):
                kept += line.endswith(b"\n")
                yield line
    else:
        while block := stream.read(BLOCK):
            yield block


def segments(markup: bytes, name: str) -> list[str]:
    """Return the text of every <seg> of an SGM or XML test set, its ASCII white space joined.

    Unlike sacrebleu, it keeps no-break spaces, and undoes `&amp;` and the other entities of XML: they are markup.
    Raises: ValueError naming the file if it is not UTF-8 or has no segment.
    """
    try:
        text = markup.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None
    found = [LAYOUT.sub(" ", undo_entities(segment)).strip(" ") for segment in SEGMENT.findall(text)]
    if not found:
        raise ValueError(f"{name}: contains no <seg>")
    return found


def undo_entities(text: str) -> str:
    """Return text without the five entities of XML."""
    return unescape(text, {"&quot;": '"', "&apos;": "'"})


def convert(path: Path, name: str, output: Path, limit: int | None = None) -> None:
    """As `write_text`, for a file on disk; OUTPUT appears when it is whole. With `limit`, the rest is not checked.

    Raises: Damaged naming the file; ValueError.
    """
    with _damage_named(path), open_any_size(path) as stream, replacing(output) as unfinished:
        write_text(stream, name, unfinished, _Room(path), limit)
