"""The JSON and YAML files of the project: each is read into a dataclass and written from it.

Unknown fields are ignored, because a later version may have written them. Fields without a default are required.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import yaml

from .files import write_text

T = TypeVar("T")
YAML = (".yaml", ".yml")
# msgspec's message about a value without quotes in a text field.
UNQUOTED = re.compile(r"Expected `str(?: \| null)?`, got `(?:bool|int|float)`")


def read(path: Path, kind: type[T], writer: str = "") -> T:
    """Read a file in JSON, or in YAML if its name ends in .yaml or .yml, into a value of the type `kind`.

    writer: the command that writes such files, for error messages
    Raises: FileNotFoundError naming the file and the writer; ValueError naming the file and the missing or mistyped
    field; OSError.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file" + (f": run {writer} first" if writer else "")) from None
    try:
        if path.suffix in YAML:
            return msgspec.convert(from_yaml(content), kind)
        return msgspec.json.decode(content, type=kind)
    except Exception as error:  # RecursionError for deep nesting; YAML's constructors raise exceptions of many types
        by = f", or not written by {writer}" if writer else ""
        # On one line, with field paths without msgspec's `$`.
        said = " ".join(str(error).split()).replace("`$.", "`").replace(" - at `$`", "")
        if path.suffix not in YAML:
            raise ValueError(f"{path}: damaged{by}: {said}") from None
        quotes = "; put the text in quotes" if UNQUOTED.search(said) else ""  # YAML is written by hand
        raise ValueError(f"{path}: {said}{quotes}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2: null, true, false, decimal numbers, and text.

    PyYAML itself reads YAML 1.1: `no` and `on` are false and true, `1:30` is 90, `010` is 8, and `1e-3` is text.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a dict, after checking that no key is repeated: PyYAML would silently use the last value."""
        known: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in known:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value} is given twice")
            known.add(str(key.value))
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


DIGITS = "0123456789"
for kind, pattern, starts in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", [*"-+", *DIGITS]),
    ("float", r"[-+]?(?=.*[.eE])(\.[0-9]+|[0-9]+\.?[0-9]*)([eE][-+]?[0-9]+)?", [*"-+.", *DIGITS]),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", [*"-+."]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), starts)


def from_yaml(content: bytes | str) -> Any:
    """Return the value of a YAML text.

    Raises: ValueError or yaml.YAMLError.
    """
    return yaml.load(content, _Loader)


def read_if_there(path: Path, kind: type[T], writer: str = "") -> T | None:
    """Like `read`, but return None if the file does not exist."""
    return read(path, kind, writer) if path.is_file() else None


def remembered(path: Path, kind: type[T]) -> T | None:
    """Like `read`, but return None if the file cannot be read for any reason: for caches, which only save work."""
    try:
        return read(path, kind)
    except (OSError, ValueError):
        return None


def text(value: Any, indent: int | None = 2) -> str:
    """Return a dataclass or JSON value as JSON text with a trailing newline."""
    return json.dumps(msgspec.to_builtins(value), indent=indent, ensure_ascii=False) + "\n"


def write(path: Path, value: Any) -> None:
    """Write a dataclass or JSON value to a JSON file, atomically."""
    write_text(path, text(value))
