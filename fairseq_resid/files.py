"""Shared reading and writing of files: bounded reads, text split on LF alone, atomic writes, locks."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import itertools
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from .foreign import say

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk, or of a limit on the size of files
T = TypeVar("T")
Number = TypeVar("Number", int, float)


# Limits on the files of a run, study or data folder, which may come from others. The training captions of COCO are
# estimated at tens of MB; other real files have a few. Memory is bounded too: a list of all lines has at most
# MOST_LINES entries. A training run logs one line per 100 updates, so the longest log has about 10,000.
MOST_BYTES, MOST_LINES, MOST_LINE_BYTES = 256 << 20, 10_000_000, 4 << 20
MOST_LOG_BYTES, MOST_LOG_LINES = 64 << 20, 200_000
# Maximum of a measured value (fp32 range), and of a count, such as tokens per line.
MOST_NUMBER, MOST_COUNT = 1e38, 1e12
ANY_SIZE = 1 << 63
LAST_BYTES = 64 << 10


def inside(root: Path, name: str | Path) -> Path:
    """Return ROOT/NAME, a file or folder of a run, study or data folder that may come from somebody else.

    ROOT may be a symbolic link. A link below it must not lead out of it: its target could contain private text, and
    files written there would be hard to find. Checkpoints, binarised data and dictionaries, whose content is never
    shown as text, need no such check and may be links.
    Raises: ValueError naming the path and its target.
    """
    path, real = root / name, os.path.realpath(root)
    for one in (path, _packed_of(path)):
        if not Path(target := os.path.realpath(one)).is_relative_to(real):
            raise ValueError(f"{one}: leads to {target}, outside {root}; replace links with copies")
    return path


def matching(root: Path, pattern: str) -> list[Path]:
    """Return the files and folders below ROOT that match a pattern, sorted. Raises: see `inside`."""
    return [inside(root, path.relative_to(root)) for path in sorted(root.glob(pattern))]


def open_regular(path: Path, most: int = MOST_BYTES) -> BinaryIO:
    """Open a regular file of limited size. Devices and named pipes, which would block, are rejected.

    Raises: FileNotFoundError; ValueError naming the file and its problem, such as its size and the limit; OSError.
    """
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_size <= most:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    is_large = stat.S_ISREG(found.st_mode)
    wrong = f"{found.st_size:,} bytes; at most {most:,} are read" if is_large else "not a regular file"
    raise ValueError(f"{path}: {wrong}")


def open_any_size(path: Path) -> BinaryIO:
    """Open a regular file like `open_regular`, but without a size limit: a corpus, an archive, or a growing log."""
    return open_regular(path, ANY_SIZE)


def open_to_append(path: Path) -> BinaryIO:
    """Open a file for appending; create it if it does not exist. Links, pipes and devices of that name are rejected.

    Raises: OSError or ValueError naming the file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: is a symbolic link, which would redirect the output; remove it") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "ab")
    os.close(descriptor)
    raise ValueError(f"{path}: not a regular file")


def create(path: Path) -> BinaryIO:
    """Create a file for writing and reading back. An existing file, link or pipe of that name is removed first."""
    path.unlink(missing_ok=True)
    return path.open("x+b")  # fails instead of following a link


def remove_redirection(path: Path) -> None:
    """Remove a link, pipe or device of this name, which would redirect the output."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        path.unlink(missing_ok=True)


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log; only its last 64 KiB are read."""
    with open_any_size(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        return file.read(LAST_BYTES).decode("utf-8", "replace").splitlines()[-count:]


def copy(source: Path, target: Path) -> None:
    """Copy a small file. Raises: see `open_regular`."""
    target.write_bytes(read_bytes(source))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises: see `open_regular`."""
    with open_regular(path, most) as file:
        return file.read(most)


def _packed_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


@contextmanager
def reading(path: Path, most_bytes: int = MOST_BYTES, most_lines: int = MOST_LINES) -> Iterator[Iterable[bytes]]:
    """Yield the lines of a file or, if it does not exist, of its compressed form FILE.gz, as kept by a study.

    Raises: FileNotFoundError if neither exists; ValueError naming the file if it is damaged, not a regular file, or
    too large, compressed or not.
    """
    packed = _packed_of(path)
    if packed.is_file() and not path.is_file():
        with open_regular(packed, most_bytes) as file:
            try:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield _bounded_lines(unpacked, packed, most_bytes, most_lines)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{packed}: damaged: {error}") from None
    else:
        with open_regular(path, most_bytes) as plain:
            yield _bounded_lines(plain, path, most_bytes, most_lines)


def _bounded_lines(file: BinaryIO | gzip.GzipFile, path: Path, most_bytes: int, most_lines: int) -> Iterator[bytes]:
    size = 0
    for number in itertools.count(1):
        line = file.readline(MOST_LINE_BYTES + 1)
        size += len(line)
        if not line:
            return
        if len(line) > MOST_LINE_BYTES or number > most_lines or size > most_bytes:
            raise ValueError(
                f"{path}:{number}: too large: at most {most_bytes:,} bytes in {most_lines:,} lines of "
                f"{MOST_LINE_BYTES:,} bytes are read"
            )
        yield line


def read_lines(path: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Return the lines of a UTF-8 text file, split on LF alone: other Unicode line breaks belong to the sentences.

    Raises: ValueError naming the file if it is missing, and the file and line if it is not UTF-8 or contains a NUL.
    """
    lines = []
    try:
        with reading(path, most_bytes) as file:
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


def bounded(value: Number, least: float, most: float) -> Number:
    """Return a number read from a file. Raises: ValueError if it is out of range or NaN."""
    if not least <= value <= most:
        raise ValueError(f"{value}: must be {least:g} to {most:g}")
    return value


def read_pairs(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return the lines of both sides of a parallel corpus.

    Raises: ValueError naming the files if one is missing or empty, or their line counts differ.
    """
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{source} has {len(sides[0])} lines, but {target} has {len(sides[1])}; both must have the same number"
        )
    if not sides[0]:
        raise ValueError(f"{source}: empty")
    return sides


def partial_of(path: Path) -> Path:
    """Return the temporary name of a file or folder while it is being written."""
    return path.with_name(f"{path.name}.partial")


def working_folder(out: Path) -> Path:
    """Return the folder in which the output folder `out` is made.

    Raises: ValueError if `out` is a file or a broken link, which the finished folder cannot replace.
    """
    if os.path.lexists(out) and not out.is_dir():
        kind = "file" if out.exists() else "link to a missing folder"
        raise ValueError(f"--out {out}: already exists and is a {kind}; remove it or choose another name")
    return partial_of(out)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name for writing a file or folder. It is renamed to `path` at the end, or removed on an error.

    Readers see either the old file or the new one, never a partial one. An existing link or pipe with the temporary
    name, which would redirect the output, is removed.
    Raises: ValueError if `path` is a device or a pipe: for root, /dev/null itself would be replaced; OSError naming
    `path` if the disk is full.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: not a regular file; the output must be one")
    partial = partial_of(path)
    remove_redirection(partial)
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        if error.errno in FULL and error.filename is None:  # Python names no file if a write fails
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
    _packed_of(folder / source.name).write_bytes(gzip.compress(read_bytes(source), 9, mtime=0))


def check_output(path: Path) -> None:
    """Check, before long work, that an output file can be created.

    Raises: FileNotFoundError if its folder does not exist; IsADirectoryError if it is a folder.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: cannot be written: its folder does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: cannot be written: is a folder")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically. Raises: see `check_output` and `replacing`."""
    check_output(path)
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
        with open_to_append(path) as file:
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
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open_any_size(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
