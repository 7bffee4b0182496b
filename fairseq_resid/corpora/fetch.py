"""Downloads that can be interrupted anywhere: resumed, retried, verified, whole or not there.

FOLDER/NAME is a whole, verified file and FOLDER/NAME.json what is known of it; FOLDER/NAME.partial is one under way.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..files import write_atomically
from .extract import is_archive, is_web_page
from .manifest import RemoteFile
from .progress import Progress

BLOCK = 1 << 20
ATTEMPTS = 4  # for each address
PAUSE = 2.0  # seconds before the second attempt; twice as long before each later one
SILENCE = 60  # seconds without a byte before a connection counts as lost
# Not worth another attempt: what is asked for is not there, or not for us.
FINAL = {400, 401, 403, 404, 405, 406, 410, 451}


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
        urls = [f"{mirror.rstrip('/')}/{urllib.parse.quote(file.name)}"] if mirror else list(file.urls)
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
    write_atomically(Path(f"{target}.json"), json.dumps(known, indent=2) + "\n")
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
            label = "size" if kind == "bytes" else f"{kind} checksum"
            return f"wrong {label}: {found[kind]}, but {expected} is expected"
    return None


def _from(
    url: str, file: RemoteFile, target: Path, allow_other: bool, sleep: Callable[[float], None]
) -> dict[str, Any]:
    """Download from one address, with resumed attempts.

    Raises: _Refused where it does not give the file, or another one.
    """
    partial = Path(f"{target}.partial")
    for attempt in range(ATTEMPTS):
        resumed = partial.is_file() and partial.stat().st_size > 0
        try:
            _attempt(url, partial, file)
        except http.client.InvalidURL as error:
            raise _Refused(f"no address: {error}") from None
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


def _attempt(url: str, partial: Path, file: RemoteFile) -> None:
    """Bring PARTIAL to the length that the server tells, from where it ends.

    Raises: OSError where the connection fails or ends too soon, _Refused for a web page.
    """
    start = partial.stat().st_size if partial.is_file() else 0
    if file.bytes is not None and start > file.bytes:
        partial.unlink()
        start = 0
    elif file.bytes is not None and start == file.bytes:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "fairseq_resid"})
    local = urllib.parse.urlsplit(url).scheme == "file"
    if start and not local:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=SILENCE)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # Nothing is left to send: the partial is whole, or is of something else. The checksum, or the next
        # attempt from the beginning, will tell.
        if error.headers.get("Content-Range", "").endswith(f"/{start}"):
            return
        partial.unlink()
        raise ConnectionError("the server's file is shorter than what is here") from None
    with answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length is not None else None
        if local and start:
            if total is not None and start > total:
                start = 0
            else:
                _skip(answer, start)
        elif start and answer.status != 206:
            start = 0  # it sends the whole, whatever was asked for
        elif start and total is not None:
            total += start
        with partial.open("ab" if start else "wb") as output, Progress(file.name, total, "B", start) as progress:
            first = not start
            while block := _read(answer):
                web = is_archive(file.name) and answer.headers.get("Content-Type", "").startswith("text/html")
                if first and (web or is_web_page(block)):
                    output.truncate(0)
                    raise _Refused("answers with a web page in place of the file")
                first = False
                output.write(block)
                progress.advance(len(block))
        size = partial.stat().st_size
    if total is not None and size < total:
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _read(answer: Any) -> bytes:
    """Read a block; whatever goes wrong here is the connection's fault, not the disk's."""
    try:
        block: bytes = answer.read(BLOCK)
    except OSError as error:
        raise ConnectionError(f"the connection was lost: {error}") from None
    return block


def _skip(stream: IO[bytes] | Any, count: int) -> None:
    while count > 0:
        block = stream.read(min(BLOCK, count))
        if not block:
            return
        count -= len(block)
