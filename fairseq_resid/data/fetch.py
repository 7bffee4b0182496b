"""Downloads that can be interrupted anywhere: resumed, retried, verified, whole or not there.

FOLDER/NAME is a whole, verified file and FOLDER/NAME.json its fingerprint; FOLDER/NAME.partial is unfinished.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from .. import records
from ..cli.progress import Progress
from ..files import locked, open_any_size, partial_of
from ..foreign import say
from .extract import Damaged, instead

BLOCK = 1 << 20
ATTEMPTS = 4  # for each address
PAUSE = 2.0  # seconds before the second attempt; twice as long before each later one
SILENCE = 60  # seconds without a byte before a connection counts as lost
PATIENCE = 5  # seconds for a question that a download does not depend on
# Not worth another attempt: what is asked for is not there, or not for us. (416: also not as a whole.)
FINAL = {400, 401, 403, 404, 405, 406, 410, 416, 451}
BEGINNING = 512  # bytes that show what a file is
ENDED = "the connection ended after {:,} of {:,} bytes"
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")  # a Content-Range


# Written by hand, in a corpus' manifest: a field that is none of these is an error.
class RemoteFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file to download: its name, where it is (in order of preference), and what is known of its content."""

    name: str = ""
    urls: tuple[str, ...] = ()
    bytes: int | None = None
    about: int | None = None  # bytes, if the exact size is not known: for the check of free disk
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a file: its size, time of change and checksums; `url` is where it was downloaded, if it was."""

    bytes: int
    mtime_ns: int
    sha256: str
    md5: str
    url: str | None = None


class FetchError(ValueError):
    """No address gave the file."""


class _Refused(Exception):
    """This address does not give the file, however often it is asked."""


class _Lost(Exception):
    """The connection failed or ended too soon: worth another attempt."""


def fetch(
    file: RemoteFile, folder: Path, mirror: str | None, allow_other: bool, sleep: Callable[[float], None] = time.sleep
) -> Fingerprint:
    """Download FOLDER/NAME unless it is there; return its fingerprint.

    With a mirror the only address is MIRROR/NAME. A file that is not the manifest's is refused; with `allow_other` it
    is accepted, and a line says so.
    Raises: FetchError saying what happened at each address; OSError if the disk is full.
    """
    target = folder / file.name
    with locked(folder / f".{file.name}.lock", f"{file.name}: another process downloads it", wait=True):
        known = _known(target)
        if known is not None and (allow_other or not problem(file, known)):
            return known
        if known is None and target.is_file() and (file.sha256 or file.md5):
            found = describe(target)  # copied there by the user, or NAME.json was lost
            if not problem(file, found):
                records.write(_record(target), found)
                return found
        urls = [address(file.name, mirror)] if mirror else list(file.urls)
        if not urls:
            raise FetchError(f"{file.name}: no download address is known; pass the folder that contains it with --raw")
        refusals = []
        for url in urls:
            say(f"{file.name}: from {url}")
            try:
                return _from(url, file, target, allow_other, sleep)
            except _Refused as refusal:
                refusals.append(f"  {url}: {refusal}")
                say(f"{file.name}: {refusal}")
    raise FetchError(
        "\n".join([f"{file.name} could not be downloaded:", *refusals, "  --raw DIR or --mirror URL can help"])
    )


def address(name: str, mirror: str) -> str:
    """Return where a mirror has a file."""
    return f"{mirror.rstrip('/')}/{urllib.parse.quote(name)}"


def size_at(url: str) -> int | None:
    """Return the size of a file by what the server says; None if it does not say it, for whatever reason."""
    try:
        with urllib.request.urlopen(_request(url, method="HEAD"), timeout=PATIENCE) as answer:
            return _length(answer)
    except (OSError, http.client.HTTPException, ValueError):
        return None


@contextmanager
def usable(path: Path, known: Fingerprint) -> Iterator[None]:
    """Remove a download if its reading raises Damaged, so that the next run downloads it again.

    A file whose fingerprint has no `url` was not downloaded: it is the user's, and stays.
    Raises: ValueError naming the file and what to do.
    """
    try:
        yield
    except Damaged as damage:
        if not known.url:
            raise ValueError(f"{damage}; replace the file") from None
        for file in (_record(path), path):
            file.unlink(missing_ok=True)
        raise ValueError(f"{damage}; the file was removed; run the same command to download it again") from None


def _record(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


def _known(target: Path) -> Fingerprint | None:
    """Return NAME.json if it is of the very file that is there."""
    known = records.remembered(_record(target), Fingerprint)
    if known is None or not target.is_file():
        return None
    status = target.stat()
    return known if (known.bytes, known.mtime_ns) == (status.st_size, status.st_mtime_ns) else None


def describe(path: Path) -> Fingerprint:
    """Return the fingerprint of a file."""
    sha256, md5 = hashlib.sha256(), hashlib.md5()
    status = path.stat()
    with open_any_size(path) as file:
        while block := file.read(BLOCK):
            sha256.update(block)
            md5.update(block)
    return Fingerprint(status.st_size, status.st_mtime_ns, sha256.hexdigest(), md5.hexdigest())


def problem(file: RemoteFile, found: Fingerprint) -> str | None:
    """Say how a file differs from the manifest; None if it does not."""
    for kind in ("bytes", "sha256", "md5"):
        expected, actual = getattr(file, kind), getattr(found, kind)
        if expected is not None and actual != expected:
            return _wrong(kind, actual, expected)
    return None


def _wrong(kind: str, actual: object, expected: object) -> str:
    label = "size" if kind == "bytes" else f"{kind} checksum"
    return f"wrong {label}: {actual}, but {expected} is expected"


def _from(url: str, file: RemoteFile, target: Path, allow_other: bool, sleep: Callable[[float], None]) -> Fingerprint:
    """Download from one address, with resumed attempts.

    Raises: _Refused if it gives no file, or another one.
    """
    partial = partial_of(target)
    resumed = partial.is_file() and partial.stat().st_size > 0
    for attempt in range(ATTEMPTS):
        try:
            _attempt(url, partial, file, allow_other)
        except _Lost as loss:
            if attempt + 1 == ATTEMPTS:
                raise _Refused(str(loss)) from None
            say(f"{file.name}: {loss}; attempt {attempt + 2} of {ATTEMPTS}")
            sleep(PAUSE * 2**attempt)
            continue
        found = describe(partial)
        wrong = problem(file, found)
        if wrong and resumed:
            # What an earlier run left may have been the beginning of another file.
            say(f"{file.name}: {wrong}; downloaded again from its beginning")
            partial.unlink()
            resumed = False
            continue
        if wrong and not allow_other:
            partial.unlink()
            raise _Refused(f"{wrong} (--allow-other-data accepts it)")
        if wrong:
            say(f"{file.name}: {wrong}; accepted")
        if not (file.sha256 or file.md5):
            say(f"{file.name}: its checksum is not known; sha256 {found.sha256}")
        os.replace(partial, target)
        known = replace(found, url=url)
        records.write(_record(target), known)
        return known
    raise _Refused("an unfinished download could not be completed")


def _attempt(url: str, partial: Path, file: RemoteFile, allow_other: bool) -> None:
    """Download what PARTIAL lacks of the length that the server says.

    PARTIAL is not changed until the answer's size and beginning show that it is the file.
    Raises: _Lost; _Refused if the answer is another file; OSError of the disk.
    """
    expected = None if allow_other else file.bytes
    start = partial.stat().st_size if partial.is_file() else 0
    if start and start == expected:
        return
    answer, start, total = _ask(url, start if expected is None or start < expected else 0)
    with answer:
        if expected is not None and total not in (None, expected):
            raise _Refused(f"{_wrong('bytes', total, expected)} (--allow-other-data accepts it)")
        if start and start == total:
            return
        block, end = _read(answer), expected if total is None else total
        if not start:
            if total is not None and len(block) < min(BEGINNING, total):
                raise _Lost(ENDED.format(len(block), total))
            if found := instead(file.name, block):
                raise _Refused(f"the server sent {found} instead of the file")
        partial.touch()
        with partial.open("r+b") as output, Progress(file.name, total, "B", start) as progress:
            output.seek(start)
            while block:
                # The same bytes, if they are there, stay: a lost connection must not shorten the file.
                place = output.tell()
                if output.read(len(block)) != block:
                    output.seek(place)
                    output.truncate()
                    output.write(block)
                progress.advance(len(block))
                if expected is not None and output.tell() > expected:
                    raise _Refused(f"the server sent more than the expected {expected} bytes")
                block = _read(answer)
            if end is not None and output.tell() < end:
                raise _Lost(ENDED.format(output.tell(), end))
            output.truncate()


def _request(url: str, **settings: Any) -> urllib.request.Request:
    request = urllib.request.Request(url, **settings)
    request.add_header("User-Agent", "fairseq_resid")
    return request


def _ask(url: str, start: int) -> tuple[Any, int, int | None]:
    """Ask for a file from a byte on; return the answer, the byte where it begins, the file's size (None: not known).

    If the answer begins at the file's size, nothing is left to read.
    Raises: _Lost; _Refused if the address or the answer cannot be used.
    """
    try:
        request = _request(url)
        if start:
            request.add_header("Range", f"bytes={start}-")
        answer = urllib.request.urlopen(request, timeout=SILENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:
            if error.headers.get("Content-Range", "").endswith(f"/{start}"):
                return error, start, start
            return _ask(url, 0)  # what is here is longer than the server's file
        raise (_Refused if error.code in FINAL else _Lost)(f"HTTP {error.code} {error.reason}") from None
    except (http.client.InvalidURL, ValueError) as error:
        raise _Refused(f"no address: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise (_Refused if isinstance(reason, FileNotFoundError) else _Lost)(str(reason)) from None
    length = _length(answer)
    if answer.status != 206:
        return answer, 0, length  # the whole, whatever was asked for
    part = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if part is not None and int(part[1]) == start:
        return answer, start, int(part[2]) if part[2] != "*" else length and start + length
    answer.close()
    if not start:
        raise _Refused("the server sent a range that was not requested")
    return _ask(url, 0)


def _length(answer: Any) -> int | None:
    """Return the length of an answer, None if the server does not say it."""
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and "Transfer-Encoding" not in answer.headers else None


def _read(answer: Any) -> bytes:
    try:
        block: bytes = answer.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Lost(f"the connection was lost: {error}") from None
    return block
