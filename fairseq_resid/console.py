"""Print text, and escape it for Markdown.

say          print lines at once, because fairseq's commands write to the same output
with_lines   an error with additional lines, such as the end of a log
markdown     text in a Markdown page
signed       a difference with its sign
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TextIO, TypeVar

Error = TypeVar("Error", bound=BaseException)

# Markdown syntax: brackets only where they form a link, underscores only outside words.
MARKUP = re.compile(r"[\\`*~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w)")
# Characters that can start a tag or an entity.
HTML = re.compile(r"<(?=[\w/!?])|&(?=#?\w+;)")
ENTITIES = {"&": "&amp;", "<": "&lt;"}


def signed(value: float, digits: int) -> str:
    """Format a difference with its sign; zero is +0.00, never -0.00.

    >>> signed(-0.004, 2), signed(-0.006, 2)
    ('+0.00', '-0.01')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def say(*lines: object, file: TextIO | None = None) -> None:
    print(*lines, sep="\n", file=file, flush=True)


def with_lines(error: Error, lines: Iterable[str]) -> Error:
    """Return an error with additional lines, which are printed below its message.

    They are stored as the notes of PEP 678; Python 3.10 has no method for them.
    """
    error.__notes__ = [*further_lines(error), *lines]  # type: ignore[attr-defined]
    return error


def further_lines(error: BaseException) -> list[str]:
    """Return the lines below an error's message."""
    return list(getattr(error, "__notes__", ()))


def markdown(text: object, in_table: bool = False) -> str:
    """Escape text for Markdown, on one line and not at the start of it; HTML is shown literally.

    in_table: for a table cell
    """
    shown = MARKUP.sub(lambda match: f"\\{match[0]}", str(text).replace("\n", " "))
    shown = HTML.sub(lambda match: ENTITIES[match[0]], shown)
    return shown.replace("|", "\\|") if in_table else shown
