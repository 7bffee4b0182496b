"""Steps that can be killed anywhere and are done once, each in a folder whose name depends on all of its input.

WORK/NAME-KEY/ is a finished step with record.json, what it returned; WORK/NAME-KEY.partial/ an unfinished one, renamed
when it is whole. KEY is a hash of the step's settings and of the keys before it, so that another setting never meets an
old result. When the next step is done, what no later step needs is deleted, and the record stays.
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

from ..folders import records
from ..folders.files import partial_of

T = TypeVar("T")
# Part of every key: raised when a new version of a step makes another result of the same input.
FORMAT = 2
RECORD = "record.json"


@dataclass(frozen=True)
class Record(Generic[T]):
    """record.json of a finished step: what it returned, and the bytes of each of its files."""

    result: T
    files: dict[str, int]


@dataclass(frozen=True)
class Step(Generic[T]):
    """One step: `run(folder)` fills its folder and returns a dataclass of the type `result`.

    str() of the result says what the step counted.
    needs: the steps whose folders it reads
    continues: whether it can make use of what an interrupted run left in its folder
    """

    name: str
    title: str
    settings: Any
    needs: tuple[str, ...]
    run: Callable[[Path], T]
    result: type[T]
    continues: bool = False


class Pipeline:
    """A sequence of steps in the folder WORK."""

    def __init__(self, work: Path, steps: Sequence[Step[Any]]) -> None:
        self.work = work
        self.steps = steps
        self.folders: dict[str, Path] = {}
        key = f"format {FORMAT}"
        for step in steps:
            depends_on = json.dumps([key, step.name, step.settings], sort_keys=True)
            key = hashlib.sha256(depends_on.encode()).hexdigest()[:16]
            self.folders[step.name] = work / f"{step.name}-{key}"

    def folder(self, step: Step[Any]) -> Path:
        """Return the folder of a finished step."""
        return self.folders[step.name]

    def result(self, step: Step[T]) -> T:
        """Return what a finished step returned."""
        return records.read(self.folder(step) / RECORD, Record[step.result]).result  # type: ignore[name-defined]

    def _record(self, step: Step[T]) -> Record[T] | None:
        return records.remembered(self.folder(step) / RECORD, Record[step.result])  # type: ignore[name-defined]

    def _is_whole(self, step: Step[Any]) -> bool:
        """Whether a step is finished, and its files are all there in the size that they had."""
        record, folder = self._record(step), self.folder(step)
        return record is not None and all(
            (folder / file).is_file() and (folder / file).stat().st_size == size for file, size in record.files.items()
        )

    def _first(self) -> int:
        """Return the index of the first step to run: every record before it is there, and every file that is needed."""
        for first in range(len(self.steps), -1, -1):
            before = self.steps[:first]
            needed = {name for step in self.steps[first:] for name in step.needs}
            if first == len(self.steps):
                needed = {before[-1].name}
            if all(self._is_whole(step) if step.name in needed else self._record(step) is not None for step in before):
                return first
        raise AssertionError("unreachable: nothing is needed before the first step")

    def run(self) -> None:
        """Run the unfinished steps.

        Raises: whatever a step raises, with nothing of it left that looks finished.
        """
        first = self._first()
        mine = {folder.name for folder in self.folders.values()}
        partials = {partial_of(self.folder(step)).name for step in self.steps if step.continues}
        for path in self.work.iterdir():
            if path.is_dir() and path.name not in mine | partials:
                shutil.rmtree(path)
        for number, step in enumerate(self.steps):
            title = f"[{number + 1}/{len(self.steps)}] {step.title}"
            if number < first:
                print(f"{title}: done before", flush=True)
                continue
            start = time.monotonic()
            result = self._run(step)
            print(f"{title}: {result}, {time.monotonic() - start:.1f} s", flush=True)
            self._free(number)

    def _run(self, step: Step[T]) -> T:
        folder = self.folder(step)
        partial = partial_of(folder)
        if folder.exists():
            shutil.rmtree(folder)
        if partial.exists() and not step.continues:
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        result = step.run(partial)
        files = {
            str(file.relative_to(partial)): file.stat().st_size
            for file in sorted(partial.rglob("*"))
            # A record can be there: of a run that was killed before it gave the folder its name.
            if file.is_file() and not file.name.startswith(RECORD)
        }
        records.write(partial / RECORD, Record(result, files))
        os.replace(partial, folder)
        return result

    def _free(self, number: int) -> None:
        """Delete the files of finished steps that no later step reads."""
        needed = {name for step in self.steps[number + 1 :] for name in step.needs} | {self.steps[number].name}
        for step in self.steps[: number + 1]:
            if step.name not in needed:
                for file in self.folder(step).rglob("*"):
                    if file.is_file() and file.name != RECORD:
                        file.unlink()
