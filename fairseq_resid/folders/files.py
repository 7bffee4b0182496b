"""Files as every part of the project reads and writes them: text split on LF alone, whole or not at all, locked."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..foreign import say

T = TypeVar("T")


@contextmanager
def reading(path: Path) -> Iterator[Iterable[bytes]]:
    """Open a file to be read; where there is none, its compressed form FILE.gz, which is what a study keeps.

    Raises: FileNotFoundError if there is neither; ValueError naming the compressed one if it is damaged.
    """
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file() and not path.is_file():
        try:
            with gzip.open(packed, "rb") as file:
                yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{packed}: damaged: {error}") from None
    else:
        with path.open("rb") as plain:
            yield plain


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text, split on LF alone: other Unicode line breaks belong to the sentences.

    Raises: ValueError naming the file if it is missing, and file and line if it is not UTF-8 or holds a NUL.
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
                    raise ValueError(f"{path}:{number}: holds a NUL byte")
                lines.append(line.rstrip("\r\n"))
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"{path}: no such file") from None
    return lines


def read_rows(path: Path, take: Callable[[list[str]], T], expected: str) -> list[T]:
    """Return what `take` makes of the fields of every line, which tabs part.

    Raises: ValueError naming file and line, and what is expected there, where `take` raises one.
    """
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            rows.append(take(line.split("\t")))
        except ValueError:
            raise ValueError(f"{path}:{number}: {line[:40]!r}: {expected} are expected") from None
    return rows


def read_pairs(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return the lines of both sides of a parallel text.

    Raises: ValueError naming the files if one is missing or empty, or their line counts differ.
    """
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{source} has {len(sides[0])} lines, {target} has {len(sides[1])}: they must be equal")
    if not sides[0]:
        raise ValueError(f"{source}: empty")
    return sides


def partial_of(path: Path) -> Path:
    """Return the temporary name of a file or folder that is being made."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the temporary name to write a file or folder under; it becomes `path` at the end, and goes on an error.

    A reader sees the old file or the new one, never half of one.
    """
    partial = partial_of(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        if partial.is_dir() and not partial.is_symlink():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def pack(source: Path, folder: Path) -> None:
    """Write FOLDER/NAME.gz, the compressed form of a file; the same content gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{source.name}.gz").write_bytes(gzip.compress(source.read_bytes(), 9, mtime=0))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def locked(path: Path, busy: str, wait: bool = False) -> Iterator[int]:
    """Hold the lock file `path` for this process; yields its descriptor, which a child process may inherit.

    busy: what is said if another process holds it; with `wait` it is printed, and the lock is waited for
    Raises: ValueError with `busy` if another process holds it and `wait` is not set.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise ValueError(busy) from None
                say(f"{busy}; waiting")
                fcntl.flock(file, fcntl.LOCK_EX)
            # The other process may have removed the file, with its folder.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield file.fileno()
                return


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
