"""Print text, and escape what comes from files and folders.

printable    on one line, without control characters
say          print such lines at once, because fairseq's commands write to the same output
with_lines   an error with additional lines, such as the end of a log
markdown     in a Markdown page, as plain text; code: as a code span
signed       a difference with its sign
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TextIO, TypeVar

Error = TypeVar("Error", bound=BaseException)

# Control characters except tabs, and lone surrogates: Python's representation of bytes that are not UTF-8.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Markdown syntax: brackets only where they form a link, underscores only outside words.
MARKUP = re.compile(r"[\\`*~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w)")
# Characters that can start a tag or an entity.
HTML = re.compile(r"<(?=[\w/!?])|&(?=#?\w+;)")
ENTITIES = {"&": "&amp;", "<": "&lt;"}


def printable(text: object) -> str:
    """Escape control characters and lone surrogates; the escape character, for example, becomes \\x1b."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], str(text))


def signed(value: float, digits: int) -> str:
    """Format a difference with its sign; zero is +0.00, never -0.00.

    >>> signed(-0.004, 2), signed(-0.006, 2)
    ('+0.00', '-0.01')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def say(*lines: object, file: TextIO | None = None) -> None:
    print(*map(printable, lines), sep="\n", file=file, flush=True)


def with_lines(error: Error, lines: Iterable[str]) -> Error:
    """Return an error with additional lines, which are printed below its message.

    They are stored as the notes of PEP 678; Python 3.10 has no method for them.
    """
    error.__notes__ = [*further_lines(error), *lines]  # type: ignore[attr-defined]
    return error


def further_lines(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def markdown(text: object, in_table: bool = False) -> str:
    """Escape text for Markdown, on one line and not at the start of it; HTML is shown literally.

    in_table: for a table cell
    """
    shown = MARKUP.sub(lambda match: f"\\{match[0]}", printable(text))
    shown = HTML.sub(lambda match: ENTITIES[match[0]], shown)
    return shown.replace("|", "\\|") if in_table else shown


def code(text: object) -> str:
    return f"`{printable(text)}`"
