"""Apply a function to parallel text, shard by shard, on all cores.

A shard is SHARD_LINES consecutive lines of a text, regardless of the number of workers. A worker writes the result for
a shard to separate files, which only appear when they are complete. When all shards are done, their files are joined in
order. A killed run loses the shards in progress; the next run processes the missing ones.

    OUTPUT-KEY/NUMBER.source, .target, .json   a finished shard: both sides, and then its counts
    OUTPUT, OUTPUT-KEY.json                    the joined text and its counts; KEY is a hash of the input

Shards are read and written line by line, so memory does not depend on the length of the text.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np

from ... import records
from ...cli.progress import Progress
from ...cli.workers import ordered
from ...console import say
from ...files import replacing

SHARD_LINES = 10_000
BLOCK = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Sides = tuple[Path, Path]


@dataclass(frozen=True)
class Shard:
    """Part of a parallel text: its two files, the number of the first line (from 1), and that line's byte offsets."""

    files: Sides
    first: int
    starts: tuple[int, int]

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of raw lines."""
        with self.files[0].open("rb") as source, self.files[1].open("rb") as target:
            source.seek(self.starts[0])
            target.seek(self.starts[1])
            yield from islice(zip(lines(source), lines(target), strict=False), SHARD_LINES)


# A Function returns the pairs of lines to write for a shard, and updates the Counter; "in" counts the pairs read.
Function = Callable[[Shard, Counter[str]], Iterable[tuple[str, str]]]


@dataclass(frozen=True)
class Written:
    """The counts of a shard or of the whole text, and the size of both files in bytes."""

    counts: dict[str, int]
    sizes: tuple[int, int]


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, split only at LF; a byte-order mark at the beginning of the file is removed."""
    first = file.tell() == 0
    for line in file:
        yield line.removeprefix(BYTE_ORDER_MARK) if first else line
        first = False


@dataclass(frozen=True)
class Measured:
    """The number of lines of a file, its SHA-256, and the byte offset of each shard."""

    lines: int
    sha256: str
    starts: list[int]


def measure(path: Path, progress: Progress | None = None) -> Measured:
    """Measure a text file. A last line without LF counts as a line."""
    count, place, last, digest, starts = 0, 0, 10, hashlib.sha256(), [0]
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
            starts += (place + 1 + ends[SHARD_LINES - 1 - count % SHARD_LINES :: SHARD_LINES]).tolist()
            count, place, last = count + len(ends), place + len(block), block[-1]
            if progress is not None:
                progress.advance(len(block))
    count += last != 10
    return Measured(count, digest.hexdigest(), starts[: -(-count // SHARD_LINES)])


def check_equal(files: Sides, source: int, target: int) -> None:
    """Raise ValueError naming both files unless both have the same number of lines."""
    if source != target:
        raise ValueError(f"{files[0]} has {source} lines, but {files[1]} has {target}; both must have the same number")


def transform(what: str, texts: Sequence[Sides], outputs: Sides, function: Function, workers: int) -> Counter[str]:
    """Apply `function` to parallel texts, one after the other; write the result and return the total counts.

    Shards finished by an earlier run are reused, so the same outputs must always be made with the same function.
    Raises: ValueError naming both files and their line counts if they differ; the errors of `function`;
    ChildProcessError if a worker dies; OSError if writing fails.
    """
    shards: list[Shard] = []
    key, total = hashlib.sha256(str(SHARD_LINES).encode()), 0
    for files in texts:
        source, target = measure(files[0]), measure(files[1])
        check_equal(files, source.lines, target.lines)
        starts = zip(source.starts, target.starts, strict=True)
        shards += [Shard(files, 1 + index * SHARD_LINES, start) for index, start in enumerate(starts)]
        key.update((source.sha256 + target.sha256).encode())
        total += source.lines
    folder = outputs[0].with_name(f"{outputs[0].name}-{key.hexdigest()[:16]}")
    record = folder.with_name(f"{folder.name}.json")
    parts = [folder / f"{number:06}" for number in range(len(shards))]
    whole = records.remembered(record, Written)
    if whole is None or [*map(_size, outputs)] != [*whole.sizes]:
        written = _finished(folder, parts, outputs)
        todo = [(shard, part) for shard, part in zip(shards, parts, strict=True) if part not in written]
        if done := sum(found.counts["in"] for found in written.values()):
            say(f"  {what}: resuming after {done:,} pairs")
        with closing(ordered(partial(_write, function), todo, min(workers, len(todo)))) as results:
            first = next(results, None)  # forks the workers, so it must come before the progress bar starts a thread
            with Progress(what, total, "pairs", done) as progress:
                for (_, part), result in zip(todo, chain([first] if first else [], results), strict=True):
                    written[part] = result
                    progress.advance(result.counts["in"])
        _join(parts, written, outputs)
        counts = sum((Counter(found.counts) for found in written.values()), Counter[str]())
        whole = Written(counts, (_size(outputs[0]), _size(outputs[1])))
        records.write(record, whole)
    shutil.rmtree(folder, ignore_errors=True)
    return Counter(whole.counts)


def _write(function: Function, task: tuple[Shard, Path]) -> Written:
    """Write the result of `function` for a shard, and then its record."""
    shard, part = task
    counts: Counter[str] = Counter()
    files = _files(part)
    with (
        replacing(files[0]) as left,
        replacing(files[1]) as right,
        left.open("wb") as source,
        right.open("wb") as target,
    ):
        for pair in function(shard, counts):
            source.write(f"{pair[0]}\n".encode())
            target.write(f"{pair[1]}\n".encode())
    written = Written(counts, (_size(files[0]), _size(files[1])))
    records.write(part.with_suffix(".json"), written)
    return written


def _finished(folder: Path, parts: Sequence[Path], outputs: Sides) -> dict[Path, Written]:
    """Return the shards that an earlier run finished. If any file is damaged, remove all shards and return none.

    A missing file has already been joined to the output. Joining starts with the first shard, after all are finished.
    """
    folder.mkdir(exist_ok=True)
    found = {part: record for part in parts if (record := records.remembered(part.with_suffix(".json"), Written))}
    for side, output in enumerate(outputs):
        sizes = {_files(part)[side]: record.sizes[side] for part, record in found.items()}
        joined = sum(size for file, size in sizes.items() if not file.is_file())
        is_damaged = any(file.is_file() and _size(file) != size for file, size in sizes.items())
        if is_damaged or (joined and (len(found) < len(parts) or joined > _size(output))):
            shutil.rmtree(folder)
            folder.mkdir()
            return {}
    return found


def _join(parts: Sequence[Path], written: dict[Path, Written], outputs: Sides) -> None:
    """Append the files of all shards to the outputs; delete each one, so that the text never needs twice the space."""
    for side, output in enumerate(outputs):
        end = 0
        with output.open("ab") as file:
            for part in parts:
                place, end = end, end + written[part].sizes[side]
                one = _files(part)[side]
                if one.is_file():  # a killed run may have appended part of it
                    file.truncate(place)
                    with one.open("rb") as opened:
                        shutil.copyfileobj(opened, file, BLOCK)
                    file.flush()
                    one.unlink()
            file.truncate(end)


def _files(part: Path) -> Sides:
    return part.with_suffix(".source"), part.with_suffix(".target")


def _size(file: Path) -> int:
    """Return the size of a file in bytes; -1 if it does not exist."""
    return file.stat().st_size if file.is_file() else -1
