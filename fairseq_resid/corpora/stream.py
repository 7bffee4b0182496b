"""Two aligned texts through a function, chunk by chunk, on all cores, in order.

Memory is bounded by the chunks under way, whatever the length of the text: at most 3 chunks a worker, each of at most
CHUNK_LINES pairs and about CHUNK_BYTES bytes. The output is the same for any number of workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import BaseContext
from pathlib import Path
from threading import Thread
from typing import IO, Any

from .progress import Progress

CHUNK_LINES = 1000
FEW_PAIRS = 30_000
CHUNK_BYTES = 1 << 20
# More than any line that clean.decode lets through can come to, also when its characters are parted by spaces.
LINE_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Chunk:
    """Some pairs of raw lines: where they come from, the number of the first (from 1), both sides."""

    files: tuple[str, str]
    first: int
    sides: tuple[list[bytes], list[bytes]]


@dataclass(frozen=True)
class Result:
    """What became of a chunk: its text on both sides, and counts to be added up."""

    sides: tuple[bytes, bytes]
    counts: Counter[str]


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, split at LF alone; of one longer than LINE_BYTES only the first LINE_BYTES.

    A byte-order mark at the file's beginning is left out.
    """
    first = True
    while line := file.readline(LINE_BYTES):
        rest = line
        while len(rest) >= LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(LINE_BYTES)
        yield line.removeprefix(BYTE_ORDER_MARK) if first else line
        first = False


def chunks(pairs: Sequence[tuple[Path, Path]]) -> Iterator[Chunk]:
    """Yield the pairs of one or more parallel texts, chunk by chunk; no chunk spans two texts.

    Raises: ValueError naming both files and their line counts where they differ.
    """
    for paths in pairs:
        files = (str(paths[0]), str(paths[1]))
        with paths[0].open("rb") as source, paths[1].open("rb") as target:
            sides: tuple[list[bytes], list[bytes]] = ([], [])
            size, first = 0, 1
            left, right = lines(source), lines(target)
            for line in left:
                other = next(right, None)
                if other is None:
                    raise unequal(paths)
                sides[0].append(line)
                sides[1].append(other)
                size += len(line) + len(other)
                if len(sides[0]) == CHUNK_LINES or size >= CHUNK_BYTES:
                    yield Chunk(files, first, sides)
                    first += len(sides[0])
                    sides, size = ([], []), 0
            if next(right, None) is not None:
                raise unequal(paths)
            if sides[0]:
                yield Chunk(files, first, sides)


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

    With several workers, `function` and `initializer(*arguments)` run in other processes, unless there is so little to
    do that starting them would take longer.
    Raises: whatever `function` raises; ChildProcessError where a worker dies; OSError where writing fails.
    """
    if total is not None and total < FEW_PAIRS:
        workers = 1
    counts: Counter[str] = Counter()
    results = _results(chunks(pairs), function, workers, initializer, arguments)
    with outputs[0].open("wb") as source, outputs[1].open("wb") as target, closing(results):
        first = next(results, None)  # forks the workers: before the progress bar starts a thread
        with Progress(what, total, "pairs") as progress:
            for result, size in chain([first] if first else [], results):
                source.write(result.sides[0])
                target.write(result.sides[1])
                counts.update(result.counts)
                progress.advance(size)
    return counts


def _context() -> BaseContext:
    """Return how workers are started: forked, where that is safe, as importing fairseq again takes seconds."""
    return get_context("fork" if sys.platform == "linux" else "spawn")


def _results(
    work: Iterator[Chunk],
    function: Callable[[Chunk], Result],
    workers: int,
    initializer: Callable[..., None] | None,
    arguments: tuple[Any, ...],
) -> Generator[tuple[Result, int], None, None]:
    if workers == 1:
        if initializer is not None:
            initializer(*arguments)
        yield from ((function(chunk), len(chunk.sides[0])) for chunk in work)
        return
    pool = ProcessPoolExecutor(workers, _context(), _start, (initializer, arguments))
    waiting: deque[tuple[Future[Result], int]] = deque()
    try:
        for chunk in work:
            waiting.append((pool.submit(function, chunk), len(chunk.sides[0])))
            if len(waiting) > 2 * workers:
                future, size = waiting.popleft()
                yield future.result(), size
        while waiting:
            future, size = waiting.popleft()
            yield future.result(), size
    except BrokenProcessPool:
        raise ChildProcessError("a worker process ended (out of memory?); fewer --workers need less") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(initializer: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
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
