"""Extract texts from archives and markup to plain files with one sentence per line.

An archive is refused if the path of a member leads outside the archive's folder. Links are never followed, and the
unpacked size is limited; see unpacking.py. `extract` writes only the requested texts, under names that we choose;
`unpack` writes all files of an image archive under their own names, and refuses one that contains anything else.

Formats by name: .tgz .tar.gz .tar.xz .tar .zip (archives), .gz (one compressed text), .sgm .xml (segments of a WMT or
IWSLT test set), train.tags.* (IWSLT training text with <tag> lines). Any other text is copied unchanged.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any
from xml.sax.saxutils import unescape

from ..cli.progress import Progress
from ..files import replacing
from .unpacking import BLOCK, NOT_A_FILE, Member, Room, damage_named, members

# White space used to lay out markup. A no-break space is part of the sentence.
LAYOUT = re.compile(r"[ \t\r\n\f\v]+")
# Matches a line of an IWSLT training file that is not a sentence but a single element, such as <url>...</url>.
TAG_LINE = re.compile(rb"\s*<(\w+)( [^>]*)?>.*</\1>\s*")
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


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

    All outputs appear together, once the archive has been read to the end and its checksums have matched: that of the
    whole archive for gzip and xz, those of the wanted members for zip. With `limit`, only that many lines of each text
    are written and reading stops there, so the rest of the archive is not checked.
    Raises: Damaged naming the archive; ValueError naming the archive and member if one is missing or not allowed.
    """
    left, room = dict(wanted), Room(archive)
    with ExitStack() as outputs, _reading(archive) as found:
        for member in found:
            if member.name not in left:
                continue
            if member.open is None:
                raise ValueError(f"{archive}: member {member.name!r} {NOT_A_FILE}")
            with member.open() as opened:
                output = outputs.enter_context(replacing(left.pop(member.name)))
                write_text(opened, member.name, output, room.take, limit)
            if not left and limit is not None:
                break
        if left:
            # An uncompressed tar that was truncated between two members looks complete.
            raise ValueError(f"{archive}: member {', '.join(left)} is missing; is the file complete?")


def unpack(archive: Path, folder: Path) -> None:
    """Extract every file of an archive to FOLDER, unchanged and under its own name.

    Raises: Damaged naming the archive; ValueError naming the archive and member if one is not allowed.
    """
    with _reading(archive) as found:
        for member in found:
            if member.is_folder:
                continue
            if member.open is None:
                raise ValueError(f"{archive}: member {member.name!r} {NOT_A_FILE}")
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as opened, target.open("wb") as output:
                shutil.copyfileobj(opened, output, BLOCK)


@contextmanager
def _reading(archive: Path) -> Iterator[Iterator[Member]]:
    """Open an archive and yield an iterator over its members.

    Raises: Damaged naming the archive, possibly on exit; see `members`.
    """
    with damage_named(archive), Progress(f"extract {archive.name}", archive.stat().st_size, "B") as progress:
        yield members(archive, progress)


def write_text(
    stream: IO[bytes], name: str, output: Path, take: Callable[[int], None], limit: int | None = None
) -> None:
    """Decompress a text and remove its markup, as the format in its name requires, and write the result.

    take: called with the size of everything that is written
    Raises: ValueError naming the text if its format is invalid; decompression errors.
    """
    with output.open("wb") as file:
        for block in _blocks(stream, name, limit):
            take(len(block))
            file.write(block)


def _blocks(stream: Any, name: str, limit: int | None) -> Iterator[bytes]:
    if name.endswith(".gz"):
        with gzip.open(stream) as opened:
            yield from _blocks(opened, name[: -len(".gz")], limit)
    elif name.endswith((".sgm", ".xml")):
        yield from ((line + "\n").encode() for line in segments(stream.read(), name)[:limit])
    elif is_tagged(name) or limit is not None:
        yield from islice((line for line in stream if not (is_tagged(name) and TAG_LINE.fullmatch(line))), limit)
    else:
        yield from iter(partial(stream.read, BLOCK), b"")


def segments(markup: bytes, name: str) -> list[str]:
    """Return the text of every <seg> of an SGM or XML test set, with runs of ASCII white space collapsed.

    Unlike sacrebleu, we keep no-break spaces, and replace `&amp;` and the other XML entities because they are markup.
    Raises: ValueError naming the file if it is not UTF-8 or contains no segments, or if a segment is not closed, which
    would shift all later lines.
    """
    try:
        text = markup.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None
    found = [LAYOUT.sub(" ", undo_entities(raw)).strip(" ") for raw in SEGMENT.findall(text)]
    if not found:
        raise ValueError(f"{name}: contains no <seg>")
    if (begun := len(re.findall(r"<seg\b", text, re.IGNORECASE))) != len(found):
        raise ValueError(f"{name}: {begun - len(found)} <seg> are not closed")
    return found


def undo_entities(text: str) -> str:
    """Replace the five XML entities with their characters."""
    return unescape(text, {"&quot;": '"', "&apos;": "'"})


def convert(path: Path, name: str, output: Path, limit: int | None = None) -> None:
    """Convert a file on disk as `write_text` does. OUTPUT appears when it is complete.

    With `limit`, the rest of the file is not checked.
    Raises: Damaged naming the file; ValueError.
    """
    room = Room(path)
    with damage_named(path), path.open("rb") as stream, replacing(output) as unfinished:
        write_text(stream, name, unfinished, room.take, limit)
