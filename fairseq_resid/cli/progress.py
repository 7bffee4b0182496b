"""Progress of a long step: a bar on a terminal, a plain line every 30 seconds in a log."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from ..console import say

EVERY = 30.0  # seconds between lines in a log
Shown = TypeVar("Shown", bound="Progress")
POLL = 1.0  # seconds between checks on another process


def amount(number: float, unit: str) -> str:
    """Format a count with thousands separators, or a number of bytes in a suitable unit."""
    if unit != "B":
        return f"{number:,.0f}"
    for name in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:,.0f} {name}"
        number /= 1000
    return f"{number:,.1f} GB"


def clock(seconds: float) -> str:
    """Return a duration as H:MM:SS."""
    return str(timedelta(seconds=round(seconds)))


class Progress:
    """`with Progress(what, total, unit) as p: p.advance(n)`. Unit: "B" for bytes, or a word such as "lines".

    Without a unit, it shows the elapsed time, for work that cannot be counted.
    """

    def __init__(self, what: str, total: int | None = None, unit: str | None = None, done: int = 0) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = self.start = done
        self.began = self.shown = time.monotonic()
        self.bar: Bar | None = None
        self.task: TaskID | None = None

    def __enter__(self: Shown) -> Shown:
        if sys.stdout.isatty():
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[text]}", markup=False),
            )
            self.bar = Bar(*columns, transient=True)
            self.task = self.bar.add_task(self.what, total=self.total, completed=self.done, text="")
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _text(self) -> str:
        passed = time.monotonic() - self.began
        if self.unit is None:
            return f"{clock(passed)} so far"
        of = f" of {amount(self.total, self.unit)}" if self.total is not None else ""
        unit = "" if self.unit == "B" else f" {self.unit}"
        rate = (self.done - self.start) / max(passed, 1e-9)
        left = ""
        if self.total is not None and rate > 0:
            left = f", {clock(max(self.total - self.done, 0) / rate)} left"
        return f"{amount(self.done, self.unit)}{of}{unit}, {amount(rate, self.unit)}{unit}/s{left}"

    def advance(self, count: int, text: str | None = None) -> None:
        """Add `count` to the finished amount. If `text` is given, show it instead of the count, rate and time left."""
        self.done += count
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, text=self._text() if text is None else text)
        elif time.monotonic() - self.shown >= EVERY:
            self.shown = time.monotonic()
            say(f"  {self.what}: {self._text() if text is None else text}")
