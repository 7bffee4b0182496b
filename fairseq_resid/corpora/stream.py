"""Two aligned texts through a function, chunk by chunk, on all cores, in order.

Memory is bounded by the chunks under way, whatever the length of the text: at most 3 chunks a worker, each of at most
CHUNK_LINES pairs and about CHUNK_BYTES bytes. The output is the same for any number of workers, and when the work is
killed and run again: OUTPUT.journal says how far it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, zip_longest
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from threading import Thread
from typing import IO, Any, NamedTuple

from ..commands.progress import Progress
from ..folders.files import write_text

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
    """Some pairs of raw lines: the files that they come from, both sides, where they end."""

    files: tuple[str, str]
    sides: tuple[list[bytes], list[bytes]]
    end: Place

    @property
    def first(self) -> int:
        """The number of the first line, from 1."""
        return self.end.lines - len(self.sides[0]) + 1


@dataclass(frozen=True)
class Result:
    """What became of a chunk: its text on both sides, and counts to be added up."""

    sides: tuple[bytes, bytes]
    counts: Counter[str]


class Journal:
    """How much of two outputs is made, in OUTPUT.journal beside the first: where a run goes on after a kill.

    place: the end of the last chunk in the outputs
    counts: the sum over all chunks in the outputs
    sizes: the outputs' bytes up to there
    """

    def __init__(self, pairs: Sequence[tuple[Path, Path]], outputs: tuple[Path, Path]) -> None:
        """Read the journal of an earlier run.

        Begin anew if it is of inputs of other sizes, or if an output is shorter than it says: it is not what it was.
        A longer one is: its end was written after the journal.
        """
        self.path = outputs[0].with_name(f"{outputs[0].name}.journal")
        self.inputs = [path.stat().st_size for path in chain(*pairs)]
        self.place, self.counts, self.sizes = Place(), Counter[str](), [0, 0]
        self.written = time.monotonic()
        try:
            told = json.loads(self.path.read_text(encoding="utf-8"))
            are_there = all(path.stat().st_size >= size for path, size in zip(outputs, told["sizes"], strict=True))
            if told["inputs"] == self.inputs and are_there:
                self.place, self.counts, self.sizes = Place(*told["place"]), Counter(told["counts"]), told["sizes"]
                return
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.path.unlink(missing_ok=True)

    def write(self, outputs: tuple[IO[bytes], IO[bytes]]) -> None:
        """Bring the outputs to the disk, then say that they are made up to `place`."""
        for file in outputs:
            file.flush()
            os.fsync(file.fileno())
        self.sizes = [os.fstat(file.fileno()).st_size for file in outputs]
        told = {"inputs": self.inputs, "sizes": self.sizes, "place": self.place, "counts": self.counts}
        write_text(self.path, json.dumps(told) + "\n")
        self.written = time.monotonic()


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

    Raises: ValueError naming both files and their line counts where they differ.
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


def count_lines(path: Path) -> int:
    """Return the number of lines of a file; a last one without LF counts."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def unequal(paths: tuple[Path, Path]) -> ValueError:
    """Return the error for sides of unequal length, naming files and counts."""
    counts = [count_lines(path) for path in paths]
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

    If an earlier run made a part of the outputs, this one goes on after it: outputs are of one function and its texts.
    With several workers, `function` and `initializer(*arguments)` run in other processes, unless there is so little to
    do that starting them would take longer.
    Raises: whatever `function` raises; ChildProcessError where a worker dies; OSError where writing fails.
    """
    journal = Journal(pairs, outputs)
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
                journal.counts.update(result.counts)
                journal.place = place
                if time.monotonic() - journal.written >= JOURNAL_EVERY:
                    journal.write((source, target))
                progress.advance(place.pairs - progress.done)
        journal.write((source, target))
    return journal.counts


def context() -> ForkContext | SpawnContext:
    """Return how workers are started: forked, where that is safe, as importing fairseq again takes seconds."""
    return get_context("fork") if sys.platform == "linux" else get_context("spawn")


def _results(
    work: Iterator[Chunk],
    function: Callable[[Chunk], Result],
    workers: int,
    initializer: Callable[..., None] | None,
    arguments: tuple[Any, ...],
) -> Generator[tuple[Result, Place], None, None]:
    if workers == 1:
        if initializer is not None:
            initializer(*arguments)
        yield from ((function(chunk), chunk.end) for chunk in work)
        return
    pool = ProcessPoolExecutor(workers, context(), start_worker, (initializer, arguments))
    waiting: deque[tuple[Future[Result], Place]] = deque()
    try:
        for chunk in work:
            waiting.append((pool.submit(function, chunk), chunk.end))
            if len(waiting) > 2 * workers:
                future, place = waiting.popleft()
                yield future.result(), place
        while waiting:
            future, place = waiting.popleft()
            yield future.result(), place
    except BrokenProcessPool:
        raise ChildProcessError("a worker process ended (out of memory?); fewer --workers need less") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def start_worker(initializer: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()) -> None:
    """Begin a worker: it leaves Ctrl-C to the parent, and ends with it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
