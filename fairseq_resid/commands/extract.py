"""Texts out of archives and markup, as plain files of one sentence a line; other files out of archives as they are.

An archive with a member that climbs out of its folder is refused, and links are never followed. Of texts only the
wanted members are written, under names of our own. Formats by name: .tgz .tar.gz .tar.xz .tar .zip (archives), .gz (one
text, compressed), .sgm .xml (segments of a WMT or IWSLT test set), train.tags.* (IWSLT's training text with <tag>
lines), anything else as it is.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any
from xml.sax.saxutils import unescape

from ..folders.files import replacing
from .progress import Progress

BLOCK = 1 << 20
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
    Raises: Damaged naming the archive; ValueError naming archive and member if one is missing, is no plain file, or has
    a name that leads out of the archive's folder.
    """
    left = dict(wanted)
    seen: list[str] = []
    with ExitStack() as outputs, _reading(archive) as members:
        for member in members:
            seen.append(name := member.name)
            if name not in left:
                continue
            with member.open() as opened:
                write_text(opened, name, outputs.enter_context(replacing(left.pop(name))), limit)
            if not left and limit is not None:
                break
        if left:
            # A tar without compression that was cut off between two members looks like a whole one.
            size = f"{archive.stat().st_size:,} bytes, is it whole?"
            raise ValueError(f"{archive} ({size}): has no member {', '.join(left)}; it has {_some(seen)}")


def unpack(archive: Path, folder: Path) -> None:
    """Write every file of an archive to FOLDER, as it is, under its own name.

    Raises: Damaged naming the archive; ValueError naming archive and member if one is neither file nor folder (a link),
    is there twice, or has a name that leads out of the archive's folder.
    """
    with _reading(archive) as members:
        for member in members:
            if member.is_folder:
                continue
            target = folder / member.name
            if target.exists():
                raise ValueError(f"{archive}: member {member.name} is there twice")
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as opened, target.open("wb") as file:
                shutil.copyfileobj(opened, file, BLOCK)


@dataclass(frozen=True)
class _Member:
    """What an archive holds under one name; `stream` opens it, and returns None if it is no plain file."""

    archive: Path
    name: str
    is_folder: bool
    stream: Callable[[], IO[bytes] | None]

    def open(self) -> IO[bytes]:
        """Open it to be read.

        Raises: ValueError naming archive and member if that cannot be.
        """
        try:
            opened = self.stream()
        except (RuntimeError, NotImplementedError) as error:  # a zip with a password, or packed oddly
            raise ValueError(f"{self.archive}: member {self.name} cannot be read: {error}") from None
        if opened is None:
            raise ValueError(f"{self.archive}: member {self.name} is no plain file")
        return opened


@contextmanager
def _reading(archive: Path) -> Iterator[Iterator[_Member]]:
    """Open an archive; yields its members, each to be used before the next one is asked for.

    Raises: Damaged naming the archive, also at the end; ValueError naming a member that leads out of it.
    """
    with (
        _damage_named(archive),
        archive.open("rb") as file,
        Progress(f"extract {archive.name}", archive.stat().st_size, "B") as progress,
    ):
        if is_web_page(file.read(BLOCK)):
            raise Damaged(f"{archive}: is a web page, not an archive")
        file.seek(0)
        yield _members(archive, file, progress)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of damaged compression and archives into Damaged; the disk's errors are raised as they are."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        # The disk's errors have a number. EINVAL: a damaged zip points before the file's beginning.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise Damaged(f"{path}: damaged or cut off ({error})") from None


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


def _members(archive: Path, file: IO[bytes], progress: Progress) -> Iterator[_Member]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(file) as opened:
            for item in opened.infolist():
                _check_name(archive, item.filename)
                name = str(PurePosixPath(item.filename))
                yield _Member(archive, name, item.is_dir(), partial(_open_zipped, opened, item))
                progress.advance(item.compress_size)
        return
    counted: IO[bytes] = _Counted(file, progress)  # type: ignore[assignment]
    beginning = file.read(len(XZ))
    file.seek(0)
    # Decompressed here, because tarfile's streams miss a cut-off end, and the checksum that stands there.
    stream = next((opened(counted) for magic, opened in DECOMPRESSED.items() if beginning.startswith(magic)), counted)
    with tarfile.open(fileobj=stream, mode="r|*") as members:
        for member in members:
            _check_name(archive, member.name)
            # Links are never followed: extractfile would.
            name = str(PurePosixPath(member.name))
            yield _Member(archive, name, member.isdir(), partial(_open_tarred, members, member))
        # The tar ends before the stream does, and checksums are compared at the stream's end.
        while members.fileobj.read(BLOCK):
            pass


def _open_zipped(opened: zipfile.ZipFile, item: zipfile.ZipInfo) -> IO[bytes] | None:
    return None if item.is_dir() else opened.open(item)


def _open_tarred(members: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes] | None:
    return members.extractfile(member) if member.isfile() else None


def _check_name(archive: Path, name: str) -> None:
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{archive}: member {name!r} leads out of the archive's folder; it is not used")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"


def write_text(stream: IO[bytes], name: str, output: Path, limit: int | None = None) -> None:
    """Write a text, decompressed and without markup, by the format that its name says.

    Raises: ValueError naming the text if its format is broken; errors of damaged compression.
    """
    with output.open("wb") as file:
        for block in _blocks(stream, name, limit):
            file.write(block)


def _blocks(stream: IO[bytes], name: str, limit: int | None) -> Iterator[bytes]:
    if name.endswith(".gz"):
        with gzip.open(stream) as opened:
            yield from _blocks(opened, name[: -len(".gz")], limit)  # type: ignore[arg-type]
        return
    if name.endswith((".sgm", ".xml")):
        yield from ((line + "\n").encode() for line in segments(stream.read(), name)[:limit])
    elif is_tagged(name) or limit is not None:
        kept = 0
        for line in stream:
            if limit is not None and kept == limit:
                break
            if not (is_tagged(name) and TAG_LINE.fullmatch(line)):
                kept += 1
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
        raise ValueError(f"{name}: holds no <seg>")
    return found


def undo_entities(text: str) -> str:
    """Return text without the five entities of XML."""
    return unescape(text, {"&quot;": '"', "&apos;": "'"})


def convert(path: Path, name: str, output: Path, limit: int | None = None) -> None:
    """As `write_text`, for a file on disk; OUTPUT appears when it is whole. With `limit`, the rest is not checked.

    Raises: Damaged naming the file; ValueError.
    """
    with _damage_named(path), path.open("rb") as stream, replacing(output) as unfinished:
        write_text(stream, name, unfinished, limit)
