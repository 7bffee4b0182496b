"""Recipes: readable files of fairseq-train flags, with `#` comments."""

from __future__ import annotations

import shlex
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "recipes"


def available() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}


def read(name: str) -> list[str]:
    """Return the words of a recipe, given its name or the path of a file.

    Raises: ValueError naming the recipes there are.
    """
    path = available().get(name, Path(name))
    if not path.is_file():
        raise ValueError(f"{name}: no such recipe; choose one of {', '.join(available())}, or a file of flags")
    return shlex.split(path.read_text(encoding="utf-8"), comments=True)
