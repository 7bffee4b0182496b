"""Files in RUN/decode with one line for every sentence or image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import ClassVar, TypeVar, get_type_hints

from ..files import read_rows, write_text

R = TypeVar("R", bound="Row")


class Row:
    """A line: a dataclass whose fields are separated by tabs. digits: decimals of its numbers in the file"""

    digits: ClassVar[int]

    @classmethod
    def read(cls: type[R], path: Path) -> list[R]:
        """Read a file. Raises: ValueError naming the file and line."""
        types = get_type_hints(cls)
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]

        def row(words: list[str]) -> R:
            return cls(*(types[name](word) for name, word in zip(names, words, strict=True)))

        return read_rows(path, row, ", ".join(names))

    @staticmethod
    def write(path: Path, rows: Sequence[Row]) -> None:
        def text(row: Row) -> str:
            values = vars(row).values()
            return "\t".join(f"{value:.{row.digits}f}" if isinstance(value, float) else str(value) for value in values)

        write_text(path, "".join(f"{text(row)}\n" for row in rows))
