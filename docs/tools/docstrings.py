"""Convert docstrings, which are plain text, to reStructuredText for the API reference.

It supports `code`, lines that begin with >>>, blocks indented by four spaces, lists whose items begin with `- `, and
fields such as "Raises: ...", whose continuation lines are indented. Everything else is a paragraph.
"""

from __future__ import annotations

import re
import textwrap
from types import FunctionType
from typing import Any

from sphinx.application import Sphinx

FIELDS = [
    "Args",
    "Returns",
    "Raises",
    "Formula",
    "Where",
    "Source",
    "Start",
    "State",
    "Shapes",
    "Shape",
    "Dtype",
    "Range",
    "Yields",
]
FIELD = re.compile(rf"^({'|'.join(FIELDS)}):\s+(.*)$")
ARGUMENT = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): +(.*)$")
# Where an argument begins: after a semicolon within a line, or at the beginning of a line.
BEFORE_ARGUMENT = re.compile(r"(?:; |\n)(?=[a-z]\w*(?:, [a-z]\w*)*: )")
LITERAL = re.compile(r"`([^`]+)`")


def escaped(text: str) -> str:
    """Return text with `code` as a literal and every other character unchanged."""
    parts = LITERAL.split(text)
    plain = [re.sub(r"([\\*_|`])", r"\\\1", part) for part in parts[::2]]
    made = [plain[0]]
    for code, after in zip(parts[1::2], plain[1:], strict=True):
        # A literal must end before a character that is not a letter.
        made += [f"``{code}``", rf"\ {after}" if after[:1].isalnum() else after]
    return "".join(made)


def block(lines: list[str]) -> list[str]:
    """Return lines as a code block."""
    return ["::", "", *textwrap.indent(textwrap.dedent("\n".join(lines)), "   ").splitlines(), ""]


def arguments(text: str, indent: str) -> list[str]:
    """Return "name: description; name: ..." as a list."""
    made: list[str] = []
    for item in BEFORE_ARGUMENT.split(text):
        found = ARGUMENT.match(" ".join(item.split()))
        made += ["", f"{indent}- ``{found[1]}``: {escaped(found[2])}" if found else f"{indent}- {escaped(item)}"]
    return made


def field(name: str, lines: list[str]) -> list[str]:
    """Return a field as reStructuredText. Arguments, under Args or without a heading, become a list."""
    if name not in FIELDS:
        return arguments("\n".join([f"{name}: {lines[0]}", *lines[1:]]), "")
    if name == "Args" and ARGUMENT.match(lines[0]):
        return ["", ":Args:", *arguments("\n".join(lines), "   ")]
    return ["", f":{name}: {escaped(lines[0])}", *(f"   {escaped(line)}" for line in lines[1:])]


def paragraph(lines: list[str]) -> list[str]:
    """Return the lines between two empty lines as reStructuredText: prose, then fields and arguments."""
    if lines[0].startswith(">>>"):
        return [".. code-block:: pycon", "", *(f"   {line}" for line in lines), ""]
    if all(line.startswith("    ") for line in lines):
        return block(lines)
    parts: list[tuple[str, list[str]]] = []  # name of a field and its lines; prose has no name
    for line in lines:
        if found := FIELD.match(line) or ARGUMENT.match(line):
            parts.append((found[1], [found[2]]))
        elif line.startswith("- "):
            parts.append(("-", [line[2:]]))
        elif parts and (line.startswith("  ") or not parts[-1][0]):
            parts[-1][1].append(line.strip())
        else:
            parts.append(("", [line.strip()]))
    made: list[str] = []
    for name, body in parts:
        if name == "-":
            made += ["", f"- {escaped(body[0])}", *(f"  {escaped(line)}" for line in body[1:])]
        elif name:
            made += field(name, body)
        else:
            made += ["", *map(escaped, body)]
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


def skip(app: Sphinx, what: str, name: str, object_: Any, skipped: bool, options: Any) -> bool | None:
    """Skip a function that is the default of a dataclass field, because it is not a method."""
    is_default = what == "class" and isinstance(object_, FunctionType) and "." not in object_.__qualname__
    return True if is_default else None


def signature(
    app: Sphinx, what: str, name: str, object_: Any, options: Any, text: str | None, returns: str | None
) -> Any:
    """Shorten the names in a signature, and the defaults that are functions or classes."""
    if text is None:
        return None
    text = re.sub(r"<(?:class|function) '?([\w.]+)'?(?: at 0x\w+)?>", r"\1", text)
    return re.sub(r"~?(?:\b[a-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", text), returns


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with autodoc."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
