"""The structures of a report, each with its formula as its docstring has it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from .. import connections


@dataclass(frozen=True)
class Entry:
    """A structure: its name, what it does, and the fields of its docstring: Formula, Source, Start, State."""

    name: str
    about: str
    fields: dict[str, str]


FIELD = re.compile(r"^ *(Formula|Source|Start|State):\s+(.*?)(?=\n *\w+:\s{2}|\n\n|\Z)", re.MULTILINE | re.DOTALL)


def entry(name: str) -> Entry:
    """Return what is to be said of a structure, from the docstring of its class."""
    text = inspect.getdoc(connections.structure(name).connection) or ""
    about = " ".join(text.split("\n\n")[0].split())
    # A short formula has its source on the same line.
    body = re.sub(r" {4,}Source:", "\nSource:   ", text)
    return Entry(name, about, {field: " ".join(value.split()) for field, value in FIELD.findall(body)})
