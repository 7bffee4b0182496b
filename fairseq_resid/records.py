"""The JSON and YAML files of the project: each is read into one dataclass and written from it.

A field that a dataclass does not have is ignored: a later version may have written it. A field without a default must
be there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from .files import read_bytes, write_text
from .foreign import printable

T = TypeVar("T")
MOST_JSON, MOST_YAML = 32 << 20, 1 << 20  # bytes


def read(path: Path, kind: type[T], writer: str = "") -> T:
    """Read a .json or .yaml file as a value of the type `kind`.

    writer: the command that writes such files, for the messages
    Raises: FileNotFoundError naming the file and the writer; ValueError naming the file, and the field that is missing
    or is of another type; OSError.
    """
    try:
        content = read_bytes(path, MOST_YAML if path.suffix == ".yaml" else MOST_JSON)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file" + (f": run {writer} first" if writer else "")) from None
    try:
        if path.suffix == ".yaml":
            # A few aliases of aliases stand for more values than memory holds.
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
                raise ValueError("aliases (*name) are not allowed")
            # Not msgspec's decoder: it lets PyYAML parse in C, where deep nesting ends the process.
            return msgspec.convert(yaml.safe_load(content), kind)
        return msgspec.json.decode(content, type=kind)
    except Exception as error:  # of deep nesting RecursionError; of YAML's types whatever their constructors raise
        by = f", or not written by {writer}" if writer else ""
        raise ValueError(f"{path}: damaged{by}: {_reason(error)}") from None


def read_if_there(path: Path, kind: type[T], writer: str = "") -> T | None:
    """As `read`; None if there is no such file."""
    return read(path, kind, writer) if path.is_file() else None


def remembered(path: Path, kind: type[T]) -> T | None:
    """As `read`; None for whatever reason the file cannot be read: for notes that only save work."""
    try:
        return read(path, kind)
    except (OSError, ValueError):
        return None


def text(value: Any, indent: int | None = 2) -> str:
    """Return a dataclass, or what JSON has, as JSON text with a newline at its end."""
    return json.dumps(msgspec.to_builtins(value), indent=indent, ensure_ascii=False) + "\n"


def write(path: Path, value: Any) -> None:
    """Write a dataclass, or what JSON has, as a JSON file, whole or not at all.

    Raises: ValueError naming the file, and the name of a file in it that is not UTF-8.
    """
    try:
        write_text(path, text(value))
    except UnicodeEncodeError as error:
        before, after = error.object[: error.start].rpartition('"')[2], error.object[error.start :].partition('"')[0]
        raise ValueError(f"{path}: cannot hold {printable(before + after)}: not UTF-8; rename that file") from None


def as_type(value: Any, kind: type[T]) -> T:
    """Return what JSON has as a value of the type `kind`.

    Raises: ValueError naming the field that is missing or is of another type.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return a parser's message on one line, a place in it without the sign for the whole file."""
    return " ".join(str(error).split()).replace("`$.", "`").replace(" - at `$`", "")
