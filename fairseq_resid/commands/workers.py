"""Work on all cores: processes that end with their parent, and results in the order of the work."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import ForkContext, SpawnContext
from threading import Thread
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def context() -> ForkContext | SpawnContext:
    """Return how workers are started: forked if that is safe, because importing fairseq again takes seconds."""
    return get_context("fork") if sys.platform == "linux" else get_context("spawn")


def ordered(
    work: Iterable[Item],
    function: Callable[[Item], Result],
    workers: int,
    initializer: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Generator[Result, None, None]:
    """Yield what `function` makes of every item, in order; at most 2·workers + 1 items are under way.

    With several workers, `function` and `initializer(*arguments)` run in other processes. These are forked when the
    first result is asked for: before that, no thread should have been started.
    Raises: whatever `function` raises; ChildProcessError if a worker dies.
    """
    if workers == 1:
        if initializer is not None:
            initializer(*arguments)
        yield from map(function, work)
        return
    pool = ProcessPoolExecutor(workers, context(), start_worker, (initializer, arguments))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in work:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ChildProcessError("a worker process ended (out of memory?); fewer --workers need less") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def start_worker(initializer: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()) -> None:
    """Begin a worker: it leaves Ctrl-C to the parent, and ends when the parent ends, for whatever reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
