"""Shared reading and writing of files: text split on LF alone, compressed forms, atomic writes, locks."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from .console import say

T = TypeVar("T")
LAST_BYTES = 64 << 10


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log; only its last 64 KiB are read."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        return file.read(LAST_BYTES).decode("utf-8", "replace").splitlines()[-count:]


def _packed_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


@contextmanager
def reading(path: Path) -> Iterator[Iterable[bytes]]:
    """Yield the lines of a file or, if it does not exist, of its compressed form FILE.gz, as kept by a study.

    Raises: FileNotFoundError if neither exists; ValueError naming the file if it is damaged.
    """
    packed = _packed_of(path)
    if packed.is_file() and not path.is_file():
        try:
            with gzip.open(packed) as unpacked:
                yield unpacked
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{packed}: damaged: {error}") from None
    else:
        with path.open("rb") as plain:
            yield plain


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file, split on LF alone: other Unicode line breaks belong to the sentences.

    Raises: ValueError naming the file if it is missing, and the file and line if it is not UTF-8 or contains a NUL.
    """
    lines = []
    try:
        with reading(path) as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None
                if "\0" in line:
                    raise ValueError(f"{path}:{number}: contains a NUL byte")
                lines.append(line.rstrip("\r\n"))
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"{path}: no such file") from None
    return lines


def read_rows(path: Path, take: Callable[[list[str]], T], expected: str) -> list[T]:
    """Apply `take` to the tab-separated fields of every line and return the results.

    Raises: ValueError naming the file, the line and the expected fields if `take` raises one.
    """
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            rows.append(take(line.split("\t")))
        except ValueError:
            raise ValueError(f"{path}:{number}: {line[:40]!r}: expected {expected}") from None
    return rows


def partial_of(path: Path) -> Path:
    """Return the temporary name of a file or folder while it is being written."""
    return path.with_name(f"{path.name}.partial")


def working_folder(out: Path) -> Path:
    """Return the folder in which the output folder `out` is made.

    Raises: ValueError if `out` has no name, or is a file or a broken link, which the finished folder cannot replace.
    """
    if not out.name:
        raise ValueError(f"--out {out}: must be a new folder")
    if os.path.lexists(out) and not out.is_dir():
        kind = "file" if out.exists() else "link to a missing folder"
        raise ValueError(f"--out {out}: already exists and is a {kind}; remove it or choose another name")
    return partial_of(out)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name for writing a file or folder. It is renamed to `path` at the end, or removed on an error.

    Readers see either the old file or the new one, never a partial one.
    Raises: ValueError if `path` is a device or a pipe: for root, /dev/null itself would be replaced; OSError naming
    `path` if the disk is full.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: not a regular file; the output must be one")
    partial = partial_of(path)
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        # Python names no file if a write fails: the disk is full, or the size of files is limited.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
            raise OSError(f"{path}: cannot be written: {error.strerror}") from None
        raise
    finally:
        if partial.is_dir() and not partial.is_symlink():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def pack(source: Path, folder: Path) -> None:
    """Write FOLDER/NAME.gz, the compressed form of a file; the same content always gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    _packed_of(folder / source.name).write_bytes(gzip.compress(source.read_bytes(), 9, mtime=0))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically. Raises: see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def locked(path: Path, busy: str, wait: bool = False) -> Iterator[int]:
    """Lock the file `path` for this process and yield its descriptor, which a child process may inherit.

    busy: message if another process holds the lock; with `wait`, it is printed and this process waits for the lock
    Raises: ValueError with `busy` if another process holds it and `wait` is not set.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise ValueError(busy) from None
                say(f"{busy}; waiting")
                fcntl.flock(file, fcntl.LOCK_EX)
            # The other process may have removed the file together with its folder.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield file.fileno()
                return


def zip_damage(path: Path) -> str | None:
    """Describe the damage to a zip file, such as a record with a wrong checksum; return None if the file is intact.

    Raises: OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except zipfile.BadZipFile as error:
        return str(error)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
