"""The JSON and YAML files of the project: each is read into a dataclass and written from it.

Unknown fields are ignored, because a later version may have written them. Fields without a default are required.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import msgspec.inspect
import yaml

from .files import read_bytes, write_text
from .foreign import printable

T = TypeVar("T")
# msgspec's message about an unknown field, and the path of the object that contains it.
UNKNOWN = re.compile(r"unknown field `[^`]*`(?: - at `([^`]*)`)?$")
MOST_JSON, MOST_YAML = 32 << 20, 1 << 18  # maximum bytes
# Limits on a YAML file: characters of a value and of a number, levels of lists and dicts.
YAML = (".yaml", ".yml")
MOST_SCALAR, MOST_DIGITS, MOST_DEPTH = 10_000, 40, 32


def read(path: Path, kind: type[T], writer: str = "") -> T:
    """Read a file in JSON, or in YAML if its name ends in .yaml or .yml, into a value of the type `kind`.

    writer: the command that writes such files, for error messages
    Raises: FileNotFoundError naming the file and the writer; ValueError naming the file and the missing or mistyped
    field; OSError.
    """
    try:
        content = read_bytes(path, MOST_YAML if path.suffix in YAML else MOST_JSON)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file" + (f": run {writer} first" if writer else "")) from None
    try:
        if path.suffix in YAML:
            return msgspec.convert(from_yaml(content), kind)
        return msgspec.json.decode(content, type=kind)
    except Exception as error:  # RecursionError for deep nesting; YAML's constructors raise exceptions of many types
        if path.suffix in YAML:  # written by hand
            raise ValueError(f"{path}: {_reason(error)}{_allowed(error, kind)}") from None
        by = f", or not written by {writer}" if writer else ""
        raise ValueError(f"{path}: damaged{by}: {_reason(error)}") from None


class _Loader(yaml.SafeLoader):
    """Reads the types of YAML 1.2's core schema: null, booleans, integers, floats, strings, lists and dicts.

    PyYAML itself reads YAML 1.1, which also has dates, and integers in base 60, whose conversion takes quadratic time.
    Aliases and tags are refused: a few nested aliases can expand to more values than fit into memory, and a tag would
    select another type.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        at = f"line {event.start_mark.line + 1}"
        what = "an alias" if isinstance(event, yaml.AliasEvent) else "a tag" if getattr(event, "tag", None) else ""
        if what:
            raise ValueError(f"{at}: {what} is not allowed")
        if self.depth == MOST_DEPTH:
            raise ValueError(f"{at}: nested too deeply; at most {MOST_DEPTH} levels are read")
        if len(getattr(event, "value", "")) > MOST_SCALAR:
            raise ValueError(f"{at}: {len(event.value):,} characters in one value; at most {MOST_SCALAR:,} are read")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a dict, after checking that no key is repeated: PyYAML would silently use the last value."""
        known: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in known:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value[:80]} is given twice")
            known.add(str(key.value))
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found

    def number(self, node: yaml.ScalarNode) -> int | float:
        """Return a number; unlike PyYAML, never read it in base 60."""
        text: str = node.value.lower()
        if len(text) > MOST_DIGITS:  # converting a long number takes quadratic time
            raise ValueError(
                f"line {node.start_mark.line + 1}: a number of {len(text):,} characters; at most {MOST_DIGITS} are read"
            )
        if text.lstrip("+-").startswith("."):
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        return float(text) if node.tag == FLOAT else int(text, 0 if text[:2] in ("0x", "0o") else 10)


INTEGER, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
for tag, pattern, starts in (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (INTEGER, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        FLOAT,
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})\Z"), starts)
_Loader.add_constructor(INTEGER, _Loader.number)
_Loader.add_constructor(FLOAT, _Loader.number)


def from_yaml(content: bytes | str) -> Any:
    """Return the value of a YAML text.

    Raises: ValueError, yaml.YAMLError or RecursionError.
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
    """Write a dataclass or JSON value to a JSON file, atomically.

    Raises: ValueError naming the file, and the text in it that is not UTF-8.
    """
    try:
        write_text(path, text(value))
    except UnicodeEncodeError as error:
        before, after = error.object[: error.start].rpartition('"')[2], error.object[error.start :].partition('"')[0]
        raise ValueError(f"{path}: cannot contain {printable(before + after)}: not UTF-8; rename that file") from None


def _reason(error: Exception) -> str:
    """Return a parser's message on one line, with field paths shown without msgspec's `$`."""
    return " ".join(str(error).split()).replace("`$.", "`").replace(" - at `$`", "")


def _allowed(error: Exception, kind: Any) -> str:
    """Return the end of the message about an unknown field: the fields that are allowed at its place."""
    if not (found := UNKNOWN.search(str(error))):
        return ""
    place = msgspec.inspect.type_info(kind)
    for name in re.findall(r"\.(\w+)", found[1] or ""):
        place = next((field.type for field in getattr(place, "fields", ()) if field.encode_name == name), place)
        place = getattr(place, "item_type", getattr(place, "value_type", place))  # of a list, of a dict
        place = next((one for one in getattr(place, "types", ()) if hasattr(one, "fields")), place)  # of an optional
    names = ", ".join(field.encode_name for field in getattr(place, "fields", ()))
    return f"; allowed fields: {names}" if names else ""
