"""Entries for a report's structures, with the formulas from their docstrings."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

from .. import connections

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
    made, at = Markup(""), 0
    for found in SCRIPT.finditer(formula):
        inner = next(text for text in found.groups()[1:] if text is not None)
        made += escape(formula[at : found.start()]) + TAGS[found[1]].format(scripts(inner))
        at = found.end()
    return made + escape(formula[at:])


def entry(name: str) -> dict[str, Any]:
    """Return the entry of a structure from the docstring of its class and from the registry.

    about: a description; formulas: the lines of each formula; notes: the other fields of the docstring
    """
    made = connections.structure(name)
    fields = {"Formula": made.formula, "Source": made.source} | made.fields
    return {
        "name": name,
        "about": made.summary,
        "formulas": [
            [typeset(part) for part in fields[field].split("; ")] for field in ("Formula", "Where") if field in fields
        ],
        "notes": {field: fields[field] for field in ("Source", "Start", "State") if field in fields},
    }
