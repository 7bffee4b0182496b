"""A fault: a text of the source, what it becomes, and the test files that must fail then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """In `file` the text `right`, which occurs once, becomes `wrong`; `tests` (files, space between) must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str

    def plant(self, tree: Path) -> None:
        """Change the file in a copy of the project.

        Raises: ValueError unless the text occurs once.
        """
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        if (times := text.count(self.right)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds its text {times} times, not once: {self.right!r}")
        file.write_text(text.replace(self.right, self.wrong), encoding="utf-8")
