"""Docstrings, which are plain text, turned into reStructuredText for the API reference.

It understands `code`, lines that begin with >>>, blocks indented by four spaces, lists of `- ` and
fields such as "Raises: ...", whose continuation is indented. Everything else is a paragraph.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

FIELDS = ["Args", "Returns", "Raises", "Formula", "Source", "Start", "State", "Shapes", "Shape", "Dtype", "Yields"]
FIELD = re.compile(rf"^({'|'.join(FIELDS)}):\s+(.*)$")
ARGUMENT = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): +(.*)$")
LITERAL = re.compile(r"`([^`]+)`")


def escaped(text: str) -> str:
    """Return text with `code` as a literal and every other sign as itself."""
    parts = LITERAL.split(text)
    plain = [re.sub(r"([\\*_|`])", r"\\\1", part) for part in parts[::2]]
    made = [plain[0]]
    for code, after in zip(parts[1::2], plain[1:], strict=True):
        # A literal ends before a sign that is no letter.
        made += [f"``{code}``", rf"\ {after}" if after[:1].isalnum() else after]
    return "".join(made)


def block(lines: list[str]) -> list[str]:
    """Return lines as a block of code."""
    return ["::", "", *textwrap.indent(textwrap.dedent("\n".join(lines)), "   ").splitlines(), ""]


def paragraph(lines: list[str]) -> list[str]:
    """Return the lines between two empty ones as reStructuredText: prose, then fields and arguments."""
    if lines[0].startswith(">>>"):
        return [".. code-block:: pycon", "", *(f"   {line}" for line in lines), ""]
    if all(line.startswith("    ") for line in lines):
        return block(lines)
    made: list[str] = []
    column = 0  # of the text of a field
    for line in lines:
        for part in re.split(r"\s{4,}(?=(?:Source|Formula):)", line):
            field = FIELD.match(part) or ARGUMENT.match(part)
            if field:
                column = field.start(2)
                name = field[1] if field[1] in FIELDS else f"``{field[1]}``"
                made += ["", f":{name}: {escaped(field[2])}"]
            elif column and part.startswith("  "):
                made.append(f"   {escaped(part.strip())}")
            elif part.startswith("- "):
                made += ["", f"- {escaped(part[2:])}"]
                column = 2
            else:
                if column:
                    made.append("")
                column = 0
                made.append(escaped(part.strip()))
    return [*made, ""]


def restructured(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText."""
    made: list[str] = []
    part: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            part.append(line.rstrip())
        elif part:
            made += [*paragraph(part), ""]
            part = []
    return made


def process(app: Sphinx, what: str, name: str, object_: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring that autodoc has read."""
    lines[:] = restructured(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to autodoc."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
