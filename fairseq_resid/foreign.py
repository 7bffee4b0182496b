"""Text of others, made safe to be shown: names of folders, what JSON files say, lines of a corpus or a log.

printable    on a terminal, in a log, in a plot: control characters escaped
say          prints it so
markdown     in a Markdown page, as plain text; code: as a code span
"""

from __future__ import annotations

import re
from typing import TextIO

# Control characters but tabs, line and paragraph separators, overrides of the writing direction; a byte of a file name
# that is no UTF-8, as Python has it, and other halves of a surrogate pair.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# What means something in Markdown: no bracket unless it makes a link, no low line within a word.
MARKUP = re.compile(r"[\\`*~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w)")
# What can begin a tag, an entity or a quotation.
HTML = re.compile(r"<(?=[\w/!?])|&(?=#?\w+;)|^>")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # os.fsdecode's: of a byte
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def printable(text: object) -> str:
    """Return a text on one line, with \\x1b in place of an escape character and the like.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return CONTROL.sub(_escaped, str(text))


def printable_lines(text: object) -> str:
    """As `printable`, of a text of several lines."""
    return "\n".join(map(printable, str(text).split("\n")))


def say(text: object, file: TextIO | None = None) -> None:
    """Print a text with names or words of others in it at once, `printable`; file: stdout unless given."""
    print(printable_lines(text), file=file, flush=True)


def markdown(text: object, in_table: bool = False) -> str:
    """Return a text as Markdown that shows it, on one line; HTML in it is text too."""
    shown = MARKUP.sub(lambda match: f"\\{match[0]}", printable(text))
    shown = HTML.sub(lambda match: ENTITIES[match[0]], shown)
    return shown.replace("|", "\\|") if in_table else shown


def code(text: object) -> str:
    """Return a text as a code span of Markdown."""
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    padding = " " if not shown.strip() or "`" in (shown[:1], shown[-1:]) else ""
    return f"{fence}{padding}{shown}{padding}{fence}"
