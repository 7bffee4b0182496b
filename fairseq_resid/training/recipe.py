"""Recipes: readable files of fairseq-train flags, with `#` comments."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

from ..folders.files import read_lines

FOLDER = Path(__file__).with_name("recipes")  # scripts/recipes, and package data in a wheel


def available() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}


def read(name: str) -> list[str]:
    """Return the arguments of a recipe, given its name or the path of a file.

    Raises: ValueError naming the recipes there are, or the file and what is wrong with it.
    """
    path = available().get(name, Path(name))
    if not path.is_file():
        near = difflib.get_close_matches(name, available(), n=1)
        meant = f"did you mean {near[0]}? There are" if near else "choose one of"
        raise ValueError(f"{name}: no such recipe; {meant} {', '.join(available())}, or a file of flags")
    try:
        # As a command pasted from a shell or an editor has it: a byte order mark, lines that go on, comments where an
        # argument would begin (those of shlex cut arguments, too).
        text = "\n".join(read_lines(path)).removeprefix("\ufeff")
        return shlex.split(re.sub(r"(?m)(^|\s)#.*$", r"\1", text).replace("\\\n", " "))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
