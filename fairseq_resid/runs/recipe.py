"""Recipes: readable files of fairseq-train flags, with `#` comments.

After a line `[evaluate]`, a recipe can set flags of `fairseq-resid evaluate` for its runs.
"""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

from ..files import read_lines

FOLDER = Path(__file__).with_name("recipes")  # scripts/recipes, and package data in a wheel


def available() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}


def read(name: str) -> list[str]:
    """Return the training flags of a recipe, given its name or the path of a file. Raises: see `_sections`."""
    return _sections(name)[0]


def evaluation(name: str) -> list[str]:
    """Return the evaluation flags of a recipe. Raises: see `_sections`."""
    return _sections(name)[1]


def _sections(name: str) -> tuple[list[str], list[str]]:
    """Return the flags of both sections of a recipe.

    Raises: ValueError naming the available recipes, or the file and the problem.
    """
    path = available().get(name, Path(name))
    if not path.is_file():
        near = difflib.get_close_matches(name, available(), n=1)
        meant = f"did you mean {near[0]}? Otherwise choose one of" if near else "choose one of"
        raise ValueError(f"{name}: no such recipe or file; {meant} {', '.join(available())}, or a file of flags")
    lines = read_lines(path)
    try:
        # Accept what a shell or an editor may produce: a byte order mark, continued lines, and comments that start
        # where an argument would start (shlex would also find comments inside arguments).
        text = "\n".join(lines).removeprefix("\ufeff")
        text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text).replace("\\\n", " ")
        training, *others = re.split(r"(?m)^\[evaluate\]\s*$", text)
        return shlex.split(training), shlex.split("".join(others))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
