"""Downloads that can be interrupted anywhere: resumed, retried, verified, whole or not there.

FOLDER/NAME is a whole, verified file and FOLDER/NAME.json what is known of it; FOLDER/NAME.partial is one under way.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..commands.progress import Progress
from ..folders.files import write_text
from .extract import Damaged, instead
from .manifest import RemoteFile

BLOCK = 1 << 20
ATTEMPTS = 4  # for each address
PAUSE = 2.0  # seconds before the second attempt; twice as long before each later one
SILENCE = 60  # seconds without a byte before a connection counts as lost
PATIENCE = 5  # seconds for a question that a download does not depend on
# Not worth another attempt: what is asked for is not there, or not for us. (416: also not as a whole.)
FINAL = {400, 401, 403, 404, 405, 406, 410, 416, 451}
BEGINNING = 512  # bytes that show what a file is
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")  # a Content-Range


class FetchError(ValueError):
    """A file could not be had from any of its addresses."""


class _Refused(Exception):
    """This address will not give the file, however often it is asked."""


def fetch(
    file: RemoteFile, folder: Path, mirror: str | None, allow_other: bool, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Bring FOLDER/NAME there unless it is; return what is known of it: size, checksums, url.

    With a mirror the only address is MIRROR/NAME. A file that is not what the manifest says is refused, or, with
    `allow_other`, accepted and said to be another.
    Raises: FetchError saying what happened at each address; OSError where the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file.name
    with _lock(folder / f".{file.name}.lock"):
        known = _known(target)
        if known is not None and (allow_other or not problem(file, known)):
            return known
        if (
            known is None
            and target.is_file()
            and (file.sha256 or file.md5)
            and not problem(file, found := describe(target))
        ):
            return _keep(target, {**found, "url": None})  # brought by hand, or its record was lost
        urls = [address(file.name, mirror)] if mirror else list(file.urls)
        if not urls:
            raise FetchError(f"{file.name}: no address is known; give the folder that has it with --raw")
        said = []
        for url in urls:
            print(f"{file.name}: from {url}", flush=True)
            try:
                return _from(url, file, target, allow_other, sleep)
            except _Refused as refusal:
                said.append(f"  {url}: {refusal}")
                print(f"{file.name}: {refusal}", flush=True)
    raise FetchError(
        "\n".join([f"{file.name} could not be downloaded:", *said, "  --raw DIR or --mirror URL can help"])
    )


def address(name: str, mirror: str) -> str:
    """Return where a mirror has a file."""
    return f"{mirror.rstrip('/')}/{urllib.parse.quote(name)}"


def size_at(url: str) -> int | None:
    """Return the size that a server tells of a file; None if it does not, for whatever reason."""
    try:
        with urllib.request.urlopen(_request(url, method="HEAD"), timeout=PATIENCE) as answer:
            return _length(answer)
    except (OSError, http.client.HTTPException, ValueError):
        return None


@contextmanager
def usable(path: Path, known: dict[str, Any]) -> Iterator[None]:
    """Remove a download if its reading raises Damaged, so that the next run asks for it again.

    `known` is the file's record; one without `url` was not downloaded: that file is the user's, and stays.
    Raises: ValueError naming the file and what to do.
    """
    try:
        yield
    except Damaged as damage:
        if not known.get("url"):
            raise ValueError(f"{damage}; replace it with a whole file") from None
        for there in (Path(f"{path}.json"), path):
            there.unlink(missing_ok=True)
        raise ValueError(f"{damage}; it was removed, and the same command downloads it again") from None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{path.name[1:-5]}: another process downloads it; waiting", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _known(target: Path) -> dict[str, Any] | None:
    """Return NAME.json if it tells of the very file that is there."""
    try:
        told = json.loads(Path(f"{target}.json").read_text(encoding="utf-8"))
        status = target.stat()
        return told if (told["bytes"], told["mtime_ns"]) == (status.st_size, status.st_mtime_ns) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(target: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Write NAME.json."""
    write_text(Path(f"{target}.json"), json.dumps(known, indent=2) + "\n")
    return known


def describe(path: Path) -> dict[str, Any]:
    """Return what identifies a file: its size, checksums, and time of change."""
    sha256, md5 = hashlib.sha256(), hashlib.md5()
    status = path.stat()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha256.update(block)
            md5.update(block)
    return {
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": sha256.hexdigest(),
        "md5": md5.hexdigest(),
    }


def problem(file: RemoteFile, found: dict[str, Any]) -> str | None:
    """Say how a file differs from the manifest; None where it does not."""
    for kind in ("bytes", "sha256", "md5"):
        expected = getattr(file, kind)
        if expected is not None and found[kind] != expected:
            return _wrong(kind, found[kind], expected)
    return None


def _wrong(kind: str, found: object, expected: object) -> str:
    label = "size" if kind == "bytes" else f"{kind} checksum"
    return f"wrong {label}: {found}, but {expected} is expected"


def _from(
    url: str, file: RemoteFile, target: Path, allow_other: bool, sleep: Callable[[float], None]
) -> dict[str, Any]:
    """Download from one address, with resumed attempts.

    Raises: _Refused where it does not give the file, or another one.
    """
    partial = Path(f"{target}.partial")
    resumed = partial.is_file() and partial.stat().st_size > 0
    for attempt in range(ATTEMPTS):
        try:
            _attempt(url, partial, file, allow_other)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code in FINAL:
                raise _Refused(f"HTTP {error.code} {error.reason}") from None
            if not isinstance(error, (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException)):
                raise  # the disk
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            if isinstance(reason, FileNotFoundError) or attempt + 1 == ATTEMPTS:
                raise _Refused(f"{reason}") from None
            print(f"{file.name}: {reason}; attempt {attempt + 2} of {ATTEMPTS}", flush=True)
            sleep(PAUSE * 2**attempt)
            continue
        found = describe(partial)
        wrong = problem(file, found)
        if wrong and resumed:
            # What had been there may have been the beginning of something else.
            print(f"{file.name}: {wrong}; once more from its beginning", flush=True)
            partial.unlink()
            resumed = False
            continue
        if wrong and not allow_other:
            partial.unlink()
            raise _Refused(f"{wrong} (--allow-other-data accepts it)")
        if wrong:
            print(f"{file.name}: {wrong}; accepted", flush=True)
        if not (file.sha256 or file.md5):
            print(f"{file.name}: no checksum is known of it; sha256 {found['sha256']}", flush=True)
        os.replace(partial, target)
        return _keep(target, {**found, "url": url})
    raise _Refused("what was left of an earlier download could not be made whole")


def _attempt(url: str, partial: Path, file: RemoteFile, allow_other: bool) -> None:
    """Bring PARTIAL to the length that the server tells, from where it ends.

    PARTIAL stays as it is until the answer's size and beginning have shown that it is the file.
    Raises: OSError if the connection fails or ends too soon; _Refused if the answer is another file.
    """
    expected = None if allow_other else file.bytes
    start = partial.stat().st_size if partial.is_file() else 0
    if start and start == expected:
        return
    if expected is not None and start > expected:
        start = 0
    answer, start, total = _ask(url, start)
    with answer:
        if expected is not None and total not in (None, expected):
            raise _Refused(f"{_wrong('bytes', total, expected)} (--allow-other-data accepts it)")
        if start and start == total:
            return
        block = _read(answer)
        if not start:
            if total is not None and len(block) < min(BEGINNING, total):
                raise _ended(len(block), total)
            if found := instead(file.name, block):
                raise _Refused(f"answers with {found} in place of the file")
        partial.touch()
        with partial.open("r+b") as output, Progress(file.name, total, "B", start) as progress:
            output.seek(start)
            while block:
                _put(output, block)
                progress.advance(len(block))
                if expected is not None and output.tell() > expected:
                    raise _Refused(f"sends more than the {expected} bytes that are expected")
                block = _read(answer)
            end = expected if total is None else total
            if end is not None and output.tell() < end:
                raise _ended(output.tell(), end)
            output.truncate()


def _ended(size: int, total: int) -> ConnectionError:
    return ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _request(url: str, **told: Any) -> urllib.request.Request:
    request = urllib.request.Request(url, **told)
    request.add_header("User-Agent", "fairseq_resid")
    return request


def _ask(url: str, start: int) -> tuple[Any, int, int | None]:
    """Ask for a file from a byte on; return the answer, the byte where it begins, the file's size (None: not told).

    If the answer begins at the file's size, nothing is left to read.
    Raises: OSError if the connection fails; _Refused if the address or the answer cannot be used.
    """
    try:
        request = _request(url)
        if start:
            request.add_header("Range", f"bytes={start}-")
        answer = urllib.request.urlopen(request, timeout=SILENCE)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        if error.headers.get("Content-Range", "").endswith(f"/{start}"):
            return error, start, start
        return _ask(url, 0)  # what is here is longer than the server's file
    except (http.client.InvalidURL, ValueError) as error:
        raise _Refused(f"no address: {error}") from None
    length = _length(answer)
    if answer.status != 206:
        return answer, 0, length  # the whole, whatever was asked for
    part = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if part is not None and int(part[1]) == start:
        size = int(part[2]) if part[2] != "*" else length and start + length
        return answer, start, size
    answer.close()
    if not start:
        raise _Refused("answers with a part of the file that was not asked for")
    return _ask(url, 0)


def _length(answer: Any) -> int | None:
    """Return the length of an answer, None if the server does not tell it."""
    told = answer.headers.get("Content-Length", "")
    return int(told) if told.isdecimal() and "Transfer-Encoding" not in answer.headers else None


def _put(output: IO[bytes], block: bytes) -> None:
    """Write a block. If the same bytes are there, they stay: a connection that is lost takes nothing away."""
    place = output.tell()
    if output.read(len(block)) != block:
        output.seek(place)
        output.truncate()
        output.write(block)


def _read(answer: Any) -> bytes:
    """Read a block; whatever goes wrong here is the connection's fault, not the disk's."""
    try:
        block: bytes = answer.read(BLOCK)
    except OSError as error:
        raise ConnectionError(f"the connection was lost: {error}") from None
    return block
