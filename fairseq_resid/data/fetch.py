"""Download files. An interrupted download is resumed, and a failed one is retried; complete files are verified.

FOLDER/NAME is a complete, verified file and FOLDER/NAME.json is its fingerprint; FOLDER/NAME.partial is an unfinished
download.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from .. import records
from ..cli.progress import Progress
from ..console import say, with_lines
from ..files import locked, partial_of
from .unpacking import Damaged

BLOCK = 1 << 20
WEB_PAGE = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<(!doctype\s+)?html\b", re.IGNORECASE)
ATTEMPTS = 4  # attempts per URL
PAUSE = 2.0  # seconds before the second attempt; doubled before each further attempt
SILENCE = 60  # seconds without data before a connection counts as lost
# These statuses are not retried, because the file does not exist or is not accessible. 416 is only final if no range
# was requested.
FINAL = {400, 401, 403, 404, 405, 406, 410, 416, 451}


# Manifests, which contain these entries, are written by hand, so an unknown field is an error.
class RemoteFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file to download: its name, its URLs in order of preference, and its known size and checksums."""

    name: str = ""
    urls: tuple[str, ...] = ()
    bytes: int | None = None
    about: int | None = None  # approximate size in bytes if the exact size is unknown, for the check of free disk space
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Fingerprint:
    """Size, modification time and checksums of a file; `url` is its source if it was downloaded."""

    bytes: int
    mtime_ns: int
    sha256: str
    md5: str
    url: str | None = None


class FetchError(ValueError):
    """The file could not be downloaded from any URL."""


class _Refused(Exception):
    """This URL does not provide the file, and retrying does not help."""


class _Lost(Exception):
    """The connection failed or ended early: try again."""


def fetch(file: RemoteFile, folder: Path, mirror: str | None = None, allow_other: bool = False) -> Fingerprint:
    """Download FOLDER/NAME unless it exists; return its fingerprint.

    With a mirror, the only URL is MIRROR/NAME. A download that differs from the manifest is refused; with `allow_other`
    it is accepted and the difference is printed.
    Raises: FetchError with the error of each URL; OSError if the disk is full.
    """
    target = folder / file.name
    with locked(folder / f".{file.name}.lock", f"{file.name}: another process is downloading it", wait=True):
        known = _known(target)
        if known is not None and (allow_other or not problem(file, known)):
            return known
        if known is None and target.is_file() and (file.sha256 or file.md5):
            found = describe(target)  # the user copied it there, or NAME.json was lost
            if not problem(file, found):
                records.write(_record(target), found)
                return found
        urls = [f"{mirror.rstrip('/')}/{urllib.parse.quote(file.name)}"] if mirror else list(file.urls)
        if not urls:
            raise FetchError(f"{file.name}: no download address is known; use --raw with the folder that contains it")
        refusals = []
        for url in urls:
            say(f"{file.name}: downloading from {url}")
            try:
                return _from(url, file, target, allow_other)
            except _Refused as refusal:
                refusals.append(f"  {url}: {refusal}")
                say(f"{file.name}: {refusal}")
    failure = FetchError(f"{file.name}: download failed:")
    raise with_lines(failure, [*refusals, "  use --mirror URL, or --raw DIR if you have the file"])


@contextmanager
def usable(path: Path, known: Fingerprint) -> Iterator[None]:
    """Remove a download if reading it raises Damaged, so that the next run downloads it again.

    A file whose fingerprint has no `url` was provided by the user and is not removed.
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
    """Return the fingerprint in NAME.json, or None if it does not describe the file on disk."""
    known = records.remembered(_record(target), Fingerprint)
    if known is None or not target.is_file():
        return None
    status = target.stat()
    return known if (known.bytes, known.mtime_ns) == (status.st_size, status.st_mtime_ns) else None


def describe(path: Path) -> Fingerprint:
    """Return the fingerprint of a file."""
    sha256, md5 = hashlib.sha256(), hashlib.md5()
    status = path.stat()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha256.update(block)
            md5.update(block)
    return Fingerprint(status.st_size, status.st_mtime_ns, sha256.hexdigest(), md5.hexdigest())


def problem(file: RemoteFile, found: Fingerprint) -> str | None:
    """Describe how a file differs from the manifest; return None if it does not."""
    for kind in ("bytes", "sha256", "md5"):
        expected, actual = getattr(file, kind), getattr(found, kind)
        if expected is not None and actual != expected:
            return _wrong(kind, actual, expected)
    return None


def _wrong(kind: str, actual: object, expected: object) -> str:
    label = "size" if kind == "bytes" else f"{kind} checksum"
    return f"wrong {label}: {actual}; expected {expected}"


def _from(url: str, file: RemoteFile, target: Path, allow_other: bool) -> Fingerprint:
    """Download from one URL; every attempt resumes the previous one.

    Raises: _Refused if the URL does not provide the file, or provides a different one.
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
            time.sleep(PAUSE * 2**attempt)
            continue
        found = describe(partial)
        wrong = problem(file, found)
        if wrong and resumed:
            # The partial file of an earlier run may belong to a different file.
            say(f"{file.name}: {wrong}; downloading it again from the beginning")
            partial.unlink()
            resumed = False
            continue
        if wrong and not allow_other:
            partial.unlink()
            raise _Refused(f"{wrong} (use --allow-other-data to accept it)")
        if wrong:
            say(f"{file.name}: {wrong}; accepted")
        if not (file.sha256 or file.md5):
            say(f"{file.name}: not verified, because the manifest has no checksum; sha256 {found.sha256}")
        os.replace(partial, target)
        known = replace(found, url=url)
        records.write(_record(target), known)
        return known
    raise _Refused("an unfinished download could not be completed")


def _attempt(url: str, partial: Path, file: RemoteFile, allow_other: bool) -> None:
    """Download the rest of PARTIAL, up to the length that the server reports.

    PARTIAL is not changed until the size and the first bytes of the response have been checked.
    Raises: _Lost; _Refused if the response is a different file; OSError if writing fails.
    """
    expected = None if allow_other else file.bytes
    start = partial.stat().st_size if partial.is_file() else 0
    if start and start == expected:
        return
    answer, start, total = _ask(url, start)
    with answer:
        if expected is not None and total not in (None, expected):
            raise _Refused(f"{_wrong('bytes', total, expected)} (use --allow-other-data to accept it)")
        if start and start == total:
            return
        block, end = _read(answer), expected if total is None else total
        if not start and (WEB_PAGE.match(block) or not (block or total)):
            raise _Refused(f"the server sent {'a web page' if block else 'an empty file'} instead of the file")
        with partial.open("ab" if start else "wb") as output, Progress(file.name, total, "B", start) as progress:
            while block:
                output.write(block)
                progress.advance(len(block))
                block = _read(answer)
            if end is not None and output.tell() < end:
                raise _Lost(f"the connection ended after {output.tell():,} of {end:,} bytes")


def _ask(url: str, start: int) -> tuple[Any, int, int | None]:
    """Request a file from byte `start`; return the response, its first byte and the file size (None if unknown).

    If the first byte equals the file size, nothing is left to read.
    Raises: _Lost; _Refused if the URL or the response is unusable.
    """
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "fairseq_resid"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        answer = urllib.request.urlopen(request, timeout=SILENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:
            if error.headers.get("Content-Range", "").endswith(f"/{start}"):
                return error, start, start
            return _ask(url, 0)  # the partial file is longer than the server's file
        raise (_Refused if error.code in FINAL else _Lost)(f"HTTP {error.code} {error.reason}") from None
    except (http.client.InvalidURL, ValueError) as error:
        raise _Refused(f"invalid URL: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise (_Refused if isinstance(reason, FileNotFoundError) else _Lost)(str(reason)) from None
    reported = None if "Transfer-Encoding" in answer.headers else answer.headers.get("Content-Length")
    length = int(reported) if reported else None
    if answer.status != 206:
        return answer, 0, length  # the whole file, even if a range was requested
    if not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        raise _Refused("the server sent another range than the requested one")
    return answer, start, None if length is None else start + length


def _read(answer: Any) -> bytes:
    try:
        block: bytes = answer.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Lost(f"the connection was lost: {error}") from None
    return block
