"""Entries for a report's structures, with the formulas from their docstrings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from .. import connections


@dataclass(frozen=True)
class Entry:
    """A structure: its name, a description, and fields of its docstring."""

    name: str
    about: str
    fields: dict[str, str]

    def lines(self, field: str) -> list[Markup]:
        """Return a field with formulas, one line per part."""
        return [typeset(part) for part in self.fields[field].split("; ")]


FIELDS = ("Formula", "Where", "Source", "Start", "State")

# An index or an exponent: a word or a dot, or a group in braces or parentheses.
SCRIPT = re.compile(r"([_^])(?:\{([^{}]*)\}|\(([^()]*)\)|([^\W_]+'*|[.]))")
TAGS = {"_": Markup("<sub>{}</sub>"), "^": Markup("<sup>{}</sup>")}


def typeset(formula: str) -> Markup:
    """Convert a docstring's formula to HTML with subscripts, superscripts and `code`.

    >>> typeset("y_k = LN_k(x + y_{k-1})")
    Markup('y<sub>k</sub> = LN<sub>k</sub>(x + y<sub>k-1</sub>)')
    """
    parts = [
        Markup("<code>{}</code>").format(part) if n % 2 else scripts(part) for n, part in enumerate(formula.split("`"))
    ]
    return Markup("").join(parts)


def scripts(formula: str) -> Markup:
    """Convert indices and exponents to HTML."""
    made, at = Markup(""), 0
    for found in SCRIPT.finditer(formula):
        inner = next(text for text in found.groups()[1:] if text is not None)
        made += escape(formula[at : found.start()]) + TAGS[found[1]].format(scripts(inner))
        at = found.end()
    return made + escape(formula[at:])


def entry(name: str) -> Entry:
    """Return the entry of a structure from the docstring of its class and from the registry."""
    made = connections.structure(name)
    fields = {"Formula": made.formula, "Source": made.source} | made.fields
    return Entry(name, made.summary, {field: fields[field] for field in FIELDS if field in fields})
