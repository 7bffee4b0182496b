"""Two aligned texts through a function, chunk by chunk, on all cores, in order.

Memory is bounded, whatever the length of the text: at most 3 chunks a worker, each of at most CHUNK_LINES pairs and
about CHUNK_BYTES bytes. The output is the same for any number of workers, and if the work is killed and run again:
OUTPUT.journal says how far it is.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..commands.progress import Progress
from ..commands.workers import ordered
from ..folders import records

CHUNK_LINES = 1000
FEW_PAIRS = 30_000
CHUNK_BYTES = 1 << 20
# More than any line that clean.decode lets through can come to, also when its characters are parted by spaces.
LINE_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
JOURNAL_EVERY = 10.0  # seconds of work that a kill can undo


class Place(NamedTuple):
    """The end of a chunk.

    text: the index of its text; lines, source, target: the lines of it and the bytes of both its sides up to here
    pairs: of all texts up to here
    """

    text: int = 0
    lines: int = 0
    source: int = 0
    target: int = 0
    pairs: int = 0


@dataclass(frozen=True)
class Chunk:
    """Some pairs of raw lines: the files that they come from, both sides, and their end."""

    files: tuple[str, str]
    sides: tuple[list[bytes], list[bytes]]
    end: Place

    @property
    def first(self) -> int:
        """The number of the first line, from 1."""
        return self.end.lines - len(self.sides[0]) + 1


@dataclass(frozen=True)
class Result:
    """What a chunk was made into: its text on both sides, and counts to be added up."""

    sides: tuple[bytes, bytes]
    counts: Counter[str]


@dataclass
class Journal:
    """OUTPUT.journal, beside the first of two outputs: how much of them is written, so that a killed run goes on there.

    inputs: bytes of the input files
    sizes: bytes of the outputs up to `place`
    place: the end of the last chunk in the outputs
    counts: the sum over all chunks in the outputs
    """

    inputs: list[int]
    sizes: tuple[int, int] = (0, 0)
    place: Place = field(default_factory=Place)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, pairs: Sequence[tuple[Path, Path]], outputs: tuple[Path, Path]) -> Journal:
        """Return the journal of an earlier run, or a new one.

        A new one if the inputs had other sizes, or an output is shorter than it was. A longer output is right: its end
        was written after the journal.
        """
        inputs = [file.stat().st_size for file in chain(*pairs)]
        found = records.remembered(path, cls)
        sizes = [file.stat().st_size if file.is_file() else -1 for file in outputs]
        if found and found.inputs == inputs and sizes[0] >= found.sizes[0] and sizes[1] >= found.sizes[1]:
            return found
        path.unlink(missing_ok=True)
        return cls(inputs)

    def add(self, counts: Counter[str], place: Place) -> None:
        """Count a chunk as written."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.place = place

    def write(self, path: Path, outputs: tuple[IO[bytes], IO[bytes]]) -> None:
        """Bring the outputs to the disk, then say that they are written up to `place`."""
        for file in outputs:
            file.flush()
            os.fsync(file.fileno())
        self.sizes = os.fstat(outputs[0].fileno()).st_size, os.fstat(outputs[1].fileno()).st_size
        records.write(path, self)


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, split at LF alone; of one longer than LINE_BYTES only the first LINE_BYTES.

    A byte-order mark at the file's beginning is left out.
    """
    first = file.tell() == 0
    while line := file.readline(LINE_BYTES):
        rest = line
        while len(rest) >= LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES)
        yield line.removeprefix(BYTE_ORDER_MARK) if first else line
        first = False


def chunks(pairs: Sequence[tuple[Path, Path]], start: Place) -> Iterator[Chunk]:
    """Yield the pairs of one or more parallel texts from `start` on, chunk by chunk; no chunk spans two texts.

    Raises: ValueError naming both files and their line counts if they differ.
    """
    place = start
    for text, paths in enumerate(pairs[start.text :], start.text):
        if text != place.text:
            place = Place(text, pairs=place.pairs)
        with paths[0].open("rb") as source, paths[1].open("rb") as target:
            source.seek(place.source)
            target.seek(place.target)
            for sides in _chunk_sides(paths, source, target):
                count = len(sides[0])
                place = Place(text, place.lines + count, source.tell(), target.tell(), place.pairs + count)
                yield Chunk((str(paths[0]), str(paths[1])), sides, place)


def _chunk_sides(
    paths: tuple[Path, Path], source: IO[bytes], target: IO[bytes]
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    for left, right in zip_longest(lines(source), lines(target)):
        if left is None or right is None:
            raise unequal(paths)
        sides[0].append(left)
        sides[1].append(right)
        size += len(left) + len(right)
        if len(sides[0]) == CHUNK_LINES or size >= CHUNK_BYTES:
            yield sides
            sides, size = ([], []), 0
    if sides[0]:
        yield sides


def measure(path: Path, progress: Progress | None = None) -> tuple[int, str]:
    """Return the number of lines of a file and its SHA-256; a last line without LF counts."""
    count, last, digest = 0, b"\n", hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            count += block.count(b"\n")
            last = block[-1:]
            if progress is not None:
                progress.advance(len(block))
    return count + (last != b"\n"), digest.hexdigest()


def unequal(paths: tuple[Path, Path]) -> ValueError:
    """Return the error for sides of unequal length, naming files and counts."""
    counts = [measure(path)[0] for path in paths]
    return ValueError(f"{paths[0]} has {counts[0]} lines, {paths[1]} has {counts[1]}: they must be equal")


def transform(
    what: str,
    pairs: Sequence[tuple[Path, Path]],
    outputs: tuple[Path, Path],
    function: Callable[[Chunk], Result],
    workers: int,
    total: int | None,
    initializer: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Counter[str]:
    """Write what `function` makes of every chunk of one or more parallel texts, in order; return the counts' sum.

    If an earlier run wrote a part of the outputs, this one goes on after it: the same outputs must always come from the
    same function and texts.
    With several workers, `function` and `initializer(*arguments)` run in other processes, unless there is so little to
    do that starting them would take longer.
    Raises: whatever `function` raises; ChildProcessError if a worker dies; OSError if writing fails.
    """
    file = outputs[0].with_name(f"{outputs[0].name}.journal")
    journal = Journal.read(file, pairs, outputs)
    written = time.monotonic()
    if journal.place.pairs:
        print(f"  {what}: goes on after {journal.place.pairs:,} pairs", flush=True)
    if total is not None and total - journal.place.pairs < FEW_PAIRS:
        workers = 1
    results = _results(chunks(pairs, journal.place), function, workers, initializer, arguments)
    with outputs[0].open("ab") as source, outputs[1].open("ab") as target, closing(results):
        source.truncate(journal.sizes[0])
        target.truncate(journal.sizes[1])
        first = next(results, None)  # forks the workers: before the progress bar starts a thread
        with Progress(what, total, "pairs", journal.place.pairs) as progress:
            for result, place in chain([first] if first else [], results):
                source.write(result.sides[0])
                target.write(result.sides[1])
                journal.add(result.counts, place)
                if time.monotonic() - written >= JOURNAL_EVERY:
                    journal.write(file, (source, target))
                    written = time.monotonic()
                progress.advance(place.pairs - progress.done)
        journal.write(file, (source, target))
    return Counter(journal.counts)


def _results(
    work: Iterator[Chunk],
    function: Callable[[Chunk], Result],
    workers: int,
    initializer: Callable[..., None] | None,
    arguments: tuple[Any, ...],
) -> Generator[tuple[Result, Place], None, None]:
    """Yield what `function` makes of every chunk, with the chunk's end."""
    ends: deque[Place] = deque()

    def noted() -> Iterator[Chunk]:
        for chunk in work:
            ends.append(chunk.end)
            yield chunk

    with closing(ordered(noted(), function, workers, initializer, arguments)) as results:
        for result in results:
            yield result, ends.popleft()
