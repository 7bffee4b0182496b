"""Texts out of archives and markup, as plain files of one sentence a line.

Only the wanted members are written, under names of our own; an archive with a member that climbs out of its folder is
refused. Formats by name: .tgz .tar.gz .tar .zip (archives), .gz (one text, compressed), .sgm .xml (segments of a WMT or
IWSLT test set), train.tags.* (IWSLT's training text with <tag> lines), anything else as it is.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO
from xml.sax.saxutils import unescape

from .progress import Progress

BLOCK = 1 << 20
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
# What markup may be laid out with. A no-break space is part of the sentence.
LAYOUT = re.compile(r"[ \t\r\n\f\v]+")
# Lines of IWSLT's training files that are no sentences: <url>...</url> and so on, with nothing around.
TAG_LINE = re.compile(rb"\s*<(\w+)( [^>]*)?>.*</\1>\s*")
DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile)


def is_archive(name: str) -> bool:
    return name.endswith((".tgz", ".tar.gz", ".tar", ".zip"))


def is_tagged(name: str) -> bool:
    """Say whether a text is IWSLT's training text, whose <tag> lines are no sentences."""
    return PurePosixPath(name).name.startswith("train.tags.")


def is_plain(name: str) -> bool:
    """Say whether a text is one sentence a line as it is."""
    return not name.endswith((".gz", ".sgm", ".xml")) and not is_tagged(name)


def extract(archive: Path, wanted: Mapping[str, Path], limit: int | None = None) -> None:
    """Write members of an archive as texts: `wanted` says which, and to what file each goes.

    With `limit`, only so many lines of each.
    Raises: ValueError naming archive and member where it is damaged, a member is missing, is no plain file, or has a
    name that leads out of the archive's folder.
    """
    left = dict(wanted)
    seen: list[str] = []
    try:
        with archive.open("rb") as file:
            if is_web_page(file.read(BLOCK)):
                raise ValueError(f"{archive}: is a web page, not an archive; remove it and run again")
            file.seek(0)
            with Progress(f"extract {archive.name}", archive.stat().st_size, "B") as progress:
                for name, stream in _members(archive, file, progress):
                    seen.append(name)
                    if name not in left:
                        continue
                    try:
                        opened = stream()
                    except (RuntimeError, NotImplementedError) as error:  # a zip with a password, or packed oddly
                        raise ValueError(f"{archive}: member {name} cannot be read: {error}") from None
                    if opened is None:
                        raise ValueError(f"{archive}: member {name} is no plain file")
                    with opened:
                        write_text(opened, name, left.pop(name), limit)
                    # With a limit, what follows is not read; else all is, so that damage shows.
                    if not left and limit is not None:
                        return
    except DAMAGED as error:
        raise ValueError(
            f"{archive}: damaged or cut off ({error}); remove it and run again, or bring it whole with --raw"
        ) from None
    if left:
        # A tar that was cut off between two members cannot be told from a whole one.
        size = f"{archive.stat().st_size:,} bytes, is it whole?"
        raise ValueError(f"{archive} ({size}): has no member {', '.join(left)}; it has {_some(seen)}")


def is_web_page(beginning: bytes) -> bool:
    """Say whether a file begins as HTML does: what some servers send in place of what was asked for."""
    return beginning[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))


class _Counted:
    """A file whose reading is shown as progress."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self.file, self.progress = file, progress

    def read(self, size: int = -1) -> bytes:
        block = self.file.read(size)
        self.progress.advance(len(block))
        return block


def _members(
    archive: Path, file: IO[bytes], progress: Progress
) -> Iterator[tuple[str, Callable[[], IO[bytes] | None]]]:
    """Yield the name of every member, and what opens it; that returns None where it is no plain file."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(file) as opened:
            for item in opened.infolist():
                _check_name(archive, item.filename)
                yield str(PurePosixPath(item.filename)), partial(_open_zipped, opened, item)
                progress.advance(item.compress_size)
        return
    with tarfile.open(fileobj=_Counted(file, progress), mode="r|*") as members:  # type: ignore[call-overload]
        for member in members:
            _check_name(archive, member.name)
            # Links are never followed: extractfile would.
            yield str(PurePosixPath(member.name)), partial(_open_tarred, members, member)


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
    """Write a text, by its name decompressed and freed of markup, to a file that appears when it is whole.

    Raises: ValueError naming the text where its format is broken; DAMAGED errors of the compression.
    """
    unfinished = output.with_name(output.name + ".partial")
    with unfinished.open("wb") as file:
        for block in _blocks(stream, name, limit):
            file.write(block)
    unfinished.replace(output)


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
    Raises: ValueError naming the file where it is not UTF-8 or has no segment.
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
    """As `write_text`, for a file on disk.

    Raises: ValueError naming the file where it is damaged.
    """
    try:
        with path.open("rb") as stream:
            write_text(stream, name, output, limit)
    except DAMAGED as damage:
        raise ValueError(f"{path}: damaged or cut off ({damage}); remove it and run again") from None
