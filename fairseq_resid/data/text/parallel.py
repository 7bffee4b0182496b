"""Apply a function to parallel text on all cores.

A shard is SHARD_LINES consecutive pairs of a text, regardless of the number of workers. Workers read the shards and
return their results, which are written in order as they arrive, so memory does not depend on the length of the text.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np

from ...cli.progress import Progress
from ...cli.workers import ordered

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

    Raises: ValueError naming both files and their line counts if they differ; the errors of `function`;
    ChildProcessError if a worker dies; OSError if writing fails.
    """
    shards: list[Shard] = []
    total, counts = 0, Counter[str]()
    for files in texts:
        source, target = measure(files[0]), measure(files[1])
        check_equal(files, source.lines, target.lines)
        starts = zip(source.starts, target.starts, strict=True)
        shards += [Shard(files, 1 + index * SHARD_LINES, start) for index, start in enumerate(starts)]
        total += source.lines
    with (
        outputs[0].open("wb") as left,
        outputs[1].open("wb") as right,
        closing(ordered(partial(_apply, function), shards, min(workers, len(shards)))) as results,
    ):
        first = next(results, None)  # forks the workers, so it must come before the progress bar starts a thread
        with Progress(what, total, "pairs") as progress:
            for source_text, target_text, found in chain([first] if first else [], results):
                left.write(source_text)
                right.write(target_text)
                counts.update(found)
                progress.advance(found["in"])
    return counts


def _apply(function: Function, shard: Shard) -> tuple[bytes, bytes, Counter[str]]:
    """Return both sides of the result of `function` for a shard, and its counts."""
    counts: Counter[str] = Counter()
    pairs = list(function(shard, counts))
    source, target = ("".join(f"{pair[side]}\n" for pair in pairs).encode() for side in (0, 1))
    return source, target, counts
