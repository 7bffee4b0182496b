"""Print text, and escape what comes from files and folders: names, JSON values, lines of a corpus or a log.

printable    on a terminal, in a log, in a plot: on one line, control characters escaped
say          print such text, escaped; each argument is one line
with_lines   an error with additional lines, such as the end of a log
markdown     in a Markdown page, as plain text; code: as a code span
signed       a difference with its sign
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TextIO, TypeVar

Error = TypeVar("Error", bound=BaseException)

# Control characters except tabs, line and paragraph separators, text direction overrides, and lone surrogates, which
# include Python's representation of file name bytes that are not UTF-8.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Markdown syntax: brackets only where they form a link, underscores only outside words.
MARKUP = re.compile(r"[\\`*~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w)")
# Characters that can start a tag or an entity.
HTML = re.compile(r"<(?=[\w/!?])|&(?=#?\w+;)")
ENTITIES = {"&": "&amp;", "<": "&lt;"}


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte that os.fsdecode could not decode
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def printable(text: object) -> str:
    """Return a text on one line with its control characters escaped; the escape character, for example, becomes \\x1b.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return CONTROL.sub(_escaped, str(text))


def signed(value: float, digits: int) -> str:
    """Format a difference with its sign; zero is +0.00, never -0.00.

    >>> signed(-0.004, 2), signed(-0.006, 2)
    ('+0.00', '-0.01')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines that may contain names of files or words of a corpus, escaped; file: stdout if None."""
    print(*map(printable, lines), sep="\n", file=file, flush=True)


def with_lines(error: Error, lines: Iterable[str]) -> Error:
    """Return an error with additional lines, which are printed below its message.

    A line break in the message itself is escaped, because it would come from the name of a file. The lines are stored
    as the notes of PEP 678; Python 3.10 has no method for them.
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
    shown = MARKUP.sub(lambda match: f"\\{match[0]}", printable(text))
    shown = HTML.sub(lambda match: ENTITIES[match[0]], shown)
    return shown.replace("|", "\\|") if in_table else shown


def code(text: object) -> str:
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    padding = " " if not shown.strip() or "`" in (shown[:1], shown[-1:]) else ""
    return f"{fence}{padding}{shown}{padding}{fence}"
