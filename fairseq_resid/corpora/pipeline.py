"""Steps that can be killed anywhere and are done once: each in a folder named by all that its result depends on.

WORK/NAME-KEY/ is a step's finished result with record.json, what it counted; WORK/NAME-KEY.partial/ one under way,
renamed when it is whole. KEY is a hash of the step's settings and of the keys before it, so that another setting
never meets an old result. When the next step is done, what no later step needs is deleted, and the record stays.
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
from typing import Any

from ..folders.files import write_text

Record = dict[str, Any]
# Part of every key: raised when a step comes to make something else of the same input.
FORMAT = 2


@dataclass(frozen=True)
class Step:
    """One step: `run(folder)` fills its folder and returns its record.

    needs: the steps whose folders it reads
    continues: whether it can make use of what an interrupted run left in its folder
    """

    name: str
    title: str
    settings: Any
    needs: tuple[str, ...]
    run: Callable[[Path], Record]
    continues: bool = False


class Pipeline:
    """A sequence of steps in the folder WORK."""

    def __init__(self, work: Path, steps: Sequence[Step]) -> None:
        self.work = work
        self.steps = steps
        self.folders: dict[str, Path] = {}
        key = f"format {FORMAT}"
        for step in steps:
            told = json.dumps([key, step.name, step.settings], sort_keys=True)
            key = hashlib.sha256(told.encode()).hexdigest()[:16]
            self.folders[step.name] = work / f"{step.name}-{key}"

    def record(self, name: str) -> Record:
        """Return what a finished step counted."""
        record: Record = json.loads((self.folders[name] / "record.json").read_text(encoding="utf-8"))
        return record

    def _is_done(self, name: str) -> bool:
        try:
            return "files" in self.record(name)
        except (OSError, ValueError):
            return False

    def _is_whole(self, name: str) -> bool:
        """Whether a finished step's files are all there, in the size that they had."""
        record, folder = self.record(name), self.folders[name]
        return all(
            (folder / file).is_file() and (folder / file).stat().st_size == size
            for file, size in record["files"].items()
        )

    def _first(self) -> int:
        """Return the index of the first step to run: behind it, every record is there and every file needed."""
        for first in range(len(self.steps), -1, -1):
            before = [step.name for step in self.steps[:first]]
            needed = {name for step in self.steps[first:] for name in step.needs if name in before}
            if first == len(self.steps):
                needed = {before[-1]}
            if all(map(self._is_done, before)) and all(map(self._is_whole, needed)):
                return first
        raise AssertionError("unreachable: nothing is needed before the first step")

    def run(self) -> None:
        """Do what is not done.

        Raises: whatever a step raises, with nothing of it left that looks finished.
        """
        first = self._first()
        mine = {folder.name for folder in self.folders.values()}
        partials = {f"{self.folders[step.name].name}.partial" for step in self.steps if step.continues}
        for found in self.work.iterdir():
            if found.is_dir() and found.name not in mine | partials:
                shutil.rmtree(found)
        for number, step in enumerate(self.steps):
            title = f"[{number + 1}/{len(self.steps)}] {step.title}"
            if number < first:
                print(f"{title}: done before", flush=True)
                continue
            print(title, flush=True)
            start = time.monotonic()
            self._run(step)
            for line in self._told(step.name):
                print(f"  {line}", flush=True)
            print(f"  {time.monotonic() - start:.1f} s", flush=True)
            self._free(number)

    def _run(self, step: Step) -> None:
        folder = self.folders[step.name]
        partial = folder.with_name(folder.name + ".partial")
        if folder.exists():
            shutil.rmtree(folder)
        if partial.exists() and not step.continues:
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        record = step.run(partial)
        files = {
            str(file.relative_to(partial)): file.stat().st_size
            for file in partial.rglob("*")
            # A record can be there: of a run that was killed before it gave the folder its name.
            if file.is_file() and not file.name.startswith("record.json")
        }
        record = {**record, "files": dict(sorted(files.items()))}
        write_text(partial / "record.json", json.dumps(record, indent=2) + "\n")
        os.replace(partial, folder)

    def _free(self, number: int) -> None:
        """Delete the files of finished steps that no later step reads."""
        needed = {name for step in self.steps[number + 1 :] for name in step.needs} | {self.steps[number].name}
        for step in self.steps[: number + 1]:
            if step.name not in needed:
                for file in self.folders[step.name].rglob("*"):
                    if file.is_file() and file.name != "record.json":
                        file.unlink()

    def _told(self, name: str) -> list[str]:
        record = self.record(name)
        return [
            f"{what}: " + ", ".join(f"{count:,} {label.replace('_', ' ')}" for label, count in counts.items() if count)
            for what, counts in record.get("counts", {}).items()
        ]
