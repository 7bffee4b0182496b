"""The docstring of a structure's class: one sentence, and fields such as Formula and Source."""

from __future__ import annotations

import inspect
import re

FIELD = re.compile(r"^([A-Z]\w*): +(.*(?:\n +.*)*)", re.MULTILINE)


def summary(cls: type) -> str:
    """Return the first paragraph of a class's own docstring."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def fields(cls: type) -> dict[str, str]:
    """Return the fields of a class's own docstring, {"Formula": "LN(x + F)", ...}. Their further lines are indented."""
    found = FIELD.findall(inspect.cleandoc(cls.__doc__ or ""))
    return {name: " ".join(text.split()) for name, text in found}
