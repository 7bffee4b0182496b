"""Entries for a report's structures, with the formulas from their docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from .. import connections


@dataclass(frozen=True)
class Entry:
    """A structure: its name, a description, and the fields of its docstring: Formula, Source, Start, State."""

    name: str
    about: str
    fields: dict[str, str]

    @property
    def formulas(self) -> list[Markup]:
        """The formula, one line per part."""
        return [typeset(part) for part in re.split(r"; ", self.fields.get("Formula", ""))]


FIELD = re.compile(r"^ *(Formula|Source|Start|State):\s+(.*?)(?=\n *\w+:\s{2}|\n\n|\Z)", re.MULTILINE | re.DOTALL)


# An index or an exponent: a word or a dot, or a group in braces or parentheses.
SCRIPT = re.compile(r"([_^])(?:\{([^{}]*)\}|\(([^()]*)\)|([^\W_]+'*|[.]))")
TAGS = {"_": Markup("<sub>{}</sub>"), "^": Markup("<sup>{}</sup>")}


def typeset(formula: str) -> Markup:
    """Convert a docstring's formula to HTML with subscripts and superscripts.

    >>> typeset("y_k = LN_k(x + y_{k-1})")
    Markup('y<sub>k</sub> = LN<sub>k</sub>(x + y<sub>k-1</sub>)')
    """
    made, at = Markup(""), 0
    for found in SCRIPT.finditer(formula):
        inner = next(text for text in found.groups()[1:] if text is not None)
        made += escape(formula[at : found.start()]) + TAGS[found[1]].format(typeset(inner))
        at = found.end()
    return made + escape(formula[at:])


def entry(name: str) -> Entry:
    """Return the entry of a structure from the docstring of its class and from the registry."""
    made = connections.structure(name)
    text = inspect.getdoc(made.connection) or ""
    about = " ".join(text.split("\n\n")[0].split())
    # After a short formula, the source is on the same line.
    body = re.sub(r" {4,}Source:", "\nSource:   ", text)
    registered = {"Formula": made.formula, "Source": made.source}
    return Entry(name, about, registered | {field: " ".join(value.split()) for field, value in FIELD.findall(body)})
