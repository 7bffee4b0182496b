"""A process pool that yields results in order and ends together with this process."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, connection, get_context, parent_process
from multiprocessing.context import ForkContext, SpawnContext
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def context() -> ForkContext | SpawnContext:
    """Return the multiprocessing context: fork where that is safe, because importing fairseq again takes seconds."""
    return get_context("fork") if sys.platform == "linux" else get_context("spawn")


def ordered(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in order. At most 2·workers + 1 items are in progress.

    Several workers are started when the first result is requested. No other thread should run at that time, because
    they are forked on Linux.
    Raises: whatever `function` raises; ChildProcessError if a worker dies.
    """
    if workers <= 1:
        yield from map(function, items)
        return
    pool = ProcessPoolExecutor(workers, context(), start_worker)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ChildProcessError("a worker process died (out of memory?); use fewer --workers") from None
    except BaseException:  # after Ctrl-C or an error in one item, the other results are not needed
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker() -> None:
    """Prepare a worker process: ignore Ctrl-C, which the parent handles, and exit on SIGTERM or when the parent exits.

    A handler that the worker inherits could catch SIGTERM in the middle of a task; then the worker would never end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
