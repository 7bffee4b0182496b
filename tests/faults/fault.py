"""A fault: a text in the source, its replacement, and the test files that must then fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """`right`, which occurs once in `file`, is replaced by `wrong`; `tests` (files, separated by spaces) must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str

    def plant(self, tree: Path) -> None:
        """Plant the fault in a copy of the project.

        Raises: ValueError unless the text occurs exactly once.
        """
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        if (times := text.count(self.right)) != 1:
            raise ValueError(f"{self.name}: {self.file} contains its text {times} times, not once: {self.right!r}")
        file.write_text(text.replace(self.right, self.wrong), encoding="utf-8")
