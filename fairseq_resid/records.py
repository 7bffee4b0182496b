"""The JSON and YAML files of the project: each is read into a dataclass and written from it.

Unknown fields are ignored, because a later version may have written them. Fields without a default are required.
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
    """Read a .json or .yaml file into a value of the type `kind`.

    writer: the command that writes such files, for error messages
    Raises: FileNotFoundError naming the file and the writer; ValueError naming the file, and the missing
    or mistyped field; OSError.
    """
    try:
        content = read_bytes(path, MOST_YAML if path.suffix == ".yaml" else MOST_JSON)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file" + (f": run {writer} first" if writer else "")) from None
    try:
        if path.suffix == ".yaml":
            # A few nested aliases can expand to more values than fit into memory.
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
                raise ValueError("aliases (*name) are not allowed")
            # Not msgspec's decoder: it uses PyYAML's C parser, where deep nesting crashes the process.
            return msgspec.convert(yaml.safe_load(content), kind)
        return msgspec.json.decode(content, type=kind)
    except Exception as error:  # RecursionError for deep nesting; YAML's constructors raise many types
        by = f", or not written by {writer}" if writer else ""
        raise ValueError(f"{path}: damaged{by}: {_reason(error)}") from None


def read_if_there(path: Path, kind: type[T], writer: str = "") -> T | None:
    """As `read`; None if the file does not exist."""
    return read(path, kind, writer) if path.is_file() else None


def remembered(path: Path, kind: type[T]) -> T | None:
    """As `read`; None if the file cannot be read for any reason: for caches, which only save work."""
    try:
        return read(path, kind)
    except (OSError, ValueError):
        return None


def text(value: Any, indent: int | None = 2) -> str:
    """Return a dataclass or JSON value as JSON text with a trailing newline."""
    return json.dumps(msgspec.to_builtins(value), indent=indent, ensure_ascii=False) + "\n"


def write(path: Path, value: Any) -> None:
    """Write a dataclass or JSON value to a JSON file, atomically.

    Raises: ValueError naming the file and the file name in it that is not UTF-8.
    """
    try:
        write_text(path, text(value))
    except UnicodeEncodeError as error:
        before, after = error.object[: error.start].rpartition('"')[2], error.object[error.start :].partition('"')[0]
        raise ValueError(f"{path}: cannot contain {printable(before + after)}: not UTF-8; rename that file") from None


def as_type(value: Any, kind: type[T]) -> T:
    """Convert a JSON value to the type `kind`.

    Raises: ValueError naming the missing or mistyped field.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return a parser's message on one line, with field paths shown without msgspec's `$`."""
    return " ".join(str(error).split()).replace("`$.", "`").replace(" - at `$`", "")
