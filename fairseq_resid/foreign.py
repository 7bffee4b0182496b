"""Escape text from outside the project for display: folder names, JSON values, lines of a corpus or a log.

printable    on a terminal, in a log, in a plot: control characters escaped
say          print such text, escaped
markdown     in a Markdown page, as plain text; code: as a code span
"""

from __future__ import annotations

import re
from typing import TextIO

# Control characters except tabs, line and paragraph separators, text direction overrides, and lone surrogates, which
# include Python's representation of file name bytes that are not UTF-8.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Markdown syntax: brackets only where they make a link, underscores only outside words.
MARKUP = re.compile(r"[\\`*~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w)")
# Characters that can start a tag, an entity or a block quote.
HTML = re.compile(r"<(?=[\w/!?])|&(?=#?\w+;)|^>")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte that os.fsdecode could not decode
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def printable(text: object) -> str:
    """Return a text on one line, with \\x1b in place of an escape character and the like.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return CONTROL.sub(_escaped, str(text))


def printable_lines(text: object) -> str:
    """As `printable`, for a text of several lines."""
    return "\n".join(map(printable, str(text).split("\n")))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a text that may contain foreign names or words, escaped by `printable`, and flush; file: default stdout."""
    print(printable_lines(text), file=file, flush=True)


def markdown(text: object, in_table: bool = False) -> str:
    """Escape a text for Markdown, on one line; HTML in it is shown as text."""
    shown = MARKUP.sub(lambda match: f"\\{match[0]}", printable(text))
    shown = HTML.sub(lambda match: ENTITIES[match[0]], shown)
    return shown.replace("|", "\\|") if in_table else shown


def code(text: object) -> str:
    """Return a text as a Markdown code span."""
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    padding = " " if not shown.strip() or "`" in (shown[:1], shown[-1:]) else ""
    return f"{fence}{padding}{shown}{padding}{fence}"
