"""Steps that run once, each in a folder whose name depends on all of its input. A killed step starts again.

WORK/NAME-KEY/ is a finished step with its result in record.json. WORK/NAME-KEY.partial/ is an unfinished one, renamed
when it is complete. KEY is a hash of the settings of the step and of all steps before it, so a step never reads a
result made with different settings. Files that no later step reads are deleted; the record is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ... import records
from ...console import say
from ...files import partial_of

T = TypeVar("T")
# This is part of every key. Increase it when a step produces a different result from the same input.
FORMAT = 4
RECORD = "record.json"


@dataclass(frozen=True)
class Step:
    """One step. reads: names of the steps whose files it reads."""

    name: str
    title: str
    settings: Any
    reads: Sequence[str] = ()


@dataclass(frozen=True)
class StepRecord(Generic[T]):
    """record.json of a finished step: its result and its file sizes."""

    result: T
    files: dict[str, int]


@dataclass(frozen=True)
class FinishedStep(Generic[T]):
    """A finished step: its folder and its result, a dataclass whose str() is printed as a summary."""

    result: T
    folder: Path


class Steps:
    """The steps in the folder WORK. Folders left by runs with different settings are deleted."""

    def __init__(self, work: Path, steps: Sequence[Step]) -> None:
        self.steps, self.folders, key = steps, {}, f"format {FORMAT}"
        for step in steps:
            key = hashlib.sha256(json.dumps([key, step.name, step.settings], sort_keys=True).encode()).hexdigest()[:16]
            self.folders[step.name] = work / f"{step.name}-{key}"
        self.first = next(first for first in range(len(steps), -1, -1) if self._can_begin(first))
        known = {path for folder in self.folders.values() for path in (folder, partial_of(folder))}
        for path in work.iterdir():
            if path.is_dir() and path not in known:
                shutil.rmtree(path)

    def _needed(self, number: int) -> set[str]:
        """Return the steps whose files are read by step `number` or a later one."""
        return {name for step in self.steps[number:] for name in step.reads} or {self.steps[-1].name}

    def _can_begin(self, first: int) -> bool:
        """Return whether all steps before `first` are finished, and the files that are still needed are complete."""
        for step in self.steps[:first]:
            folder = self.folders[step.name]
            record = records.remembered(folder / RECORD, StepRecord[Any])
            if record is None:
                return False
            files = record.files.items() if step.name in self._needed(first) else ()
            if not all((folder / file).is_file() and (folder / file).stat().st_size == size for file, size in files):
                return False
        return True

    def run(self, name: str, kind: type[T], make: Callable[[Path], T]) -> FinishedStep[T]:
        """Run the next step unless it is finished.

        kind: the type of the step's result
        Raises: the errors of `make`; the step then counts as unfinished.
        """
        number, step = next(found for found in enumerate(self.steps) if found[1].name == name)
        title, folder = f"[{number + 1}/{len(self.steps)}] {step.title}", self.folders[name]
        if number < self.first:
            say(f"{title}: already done")
            return FinishedStep(records.read(folder / RECORD, StepRecord[kind]).result, folder)  # type: ignore[valid-type]
        began, partial = time.monotonic(), partial_of(folder)
        for left in (folder, partial):  # of other or unfinished work
            shutil.rmtree(left, ignore_errors=True)
        partial.mkdir()
        result = make(partial)
        sizes = {
            str(file.relative_to(partial)): file.stat().st_size for file in sorted(partial.rglob("*")) if file.is_file()
        }
        records.write(partial / RECORD, StepRecord(result, sizes))
        os.replace(partial, folder)
        say(f"{title}: {result}, {time.monotonic() - began:.1f} s")
        for other in self.steps[:number]:
            if other.name not in self._needed(number + 1):
                for file in self.folders[other.name].rglob("*"):
                    if file.is_file() and file.name != RECORD:
                        file.unlink()
        return FinishedStep(result, folder)
