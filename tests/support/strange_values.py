"""Replace any field of a JSON or YAML file, a log or a line of fields with a strange value, chosen by a seed."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

Choose = random.Random

NESTED: Any = []
for _ in range(60):
    NESTED = [NESTED]

NUMBERS = (
    -1, 0, 1, 2, 1.5, -0.5, 5e-324, 1e-9, 1e15, 1e38, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30), 10**400,
)  # fmt: skip
TEXTS = (
    "", " ", "\t", "x", "x" * 20_000, "word " * 2_000, "\x1b[31mred\x1b[0m \x1b]0;title\x07", "\x9b2J", "\r", "a\nb",
    "a\0b", "\ud800", "\udcff", "\u202e right to left", "אבג ابت \u200f", "\u2028", "\ufeff", "e\u0301" * 50,
    "👩‍👩‍👧‍👦",
    "<script>alert(1)</script>", "$x_{1$", r"$\frac$", "a_b_c^d $", "[x](javascript:y)", "| a | b |", "```", "{{ 1 }}",
    "%s %d {0}", "'", '"', "\\", "/dev/zero", "../../../etc/passwd", "~", "-", "--help", "--residual", "nan", "None",
    "1e999", "-1", "٣", "1_0", "0x10", "true", "__import__('os').getpid()", "(1,2)",
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], NESTED, [1, 2], ["a"], [None], {"a": 1}, {"": None}, {"\x1b": "\x1b"})


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of a value and of every value in it: keys and indices, outermost first."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from paths(item, (*path, key))


def fields(value: Any) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Return the fields of a value, each with the paths of its values. The items of a list belong to the same field."""
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in paths(value):
        found.setdefault(tuple("[]" if isinstance(key, int) else key for key in path), []).append(path)
    return found


def like(choose: Choose, value: Any) -> Any:
    """Return a value that resembles another: usually of the same type, but with different content or size."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return choose.choice([*NUMBERS, value + 1, value - 1, -value, value * 1_000, value * 10**20, value / 3])
    if isinstance(value, str):
        other = choose.choice(TEXTS)
        return choose.choice([other, other, value + other, other + value, value * 3, value[:-1], value.upper()])
    if isinstance(value, list):
        return choose.choice([[], value[:-1], value[1:], value * 2, value * 300, value[::-1], [value], [*value, None]])
    if isinstance(value, dict):
        name, *_ = [*value, ""]
        key, other = choose.choice([*value, ""]), choose.choice(TEXTS)
        found = {choose.choice([other, "extra"]) if each == key else each: item for each, item in value.items()}
        return choose.choice([{}, found, {**value, other: value.get(name)}, {**value, "extra": None}, [value]])
    return choose.choice(OTHERS)


HOW = ("like", "other type", "like", "text", "number", "missing")  # ways to alter a field, used in turn


def altered(choose: Choose, value: Any, turn: int) -> Any:
    """Return a copy of a JSON value in which one value of one field is removed or replaced by a strange value.

    turn: consecutive turns alter one field after another, then all fields again in another way
    """
    value = json.loads(json.dumps(value))
    known = list(fields(value).values())
    path = choose.choice(known[turn % len(known)])
    how = HOW[(turn % len(known) + turn // len(known)) % len(HOW)]
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    if path and how == "missing":
        del inside[path[-1]]
        return value
    old = inside[path[-1]] if path else value
    values = {"other type": OTHERS, "text": TEXTS, "number": NUMBERS}.get(how)
    new = choose.choice(values) if values else like(choose, old)
    if not path:
        return new
    inside[path[-1]] = new
    return value


def as_json(choose: Choose, content: bytes, turn: int) -> bytes:
    return json.dumps(altered(choose, json.loads(content), turn)).encode()


def as_yaml(choose: Choose, content: bytes, turn: int) -> bytes:
    found = altered(choose, yaml.safe_load(content), turn)
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=choose.random() < 0.5).encode("utf-8", "surrogatepass")


def as_log(choose: Choose, content: bytes, turn: int) -> bytes:
    """Alter a value of a record in a log and, sometimes, the time of the record."""
    lines = content.split(b"\n")
    logged = [place for place, line in enumerate(lines) if b'{"' in line]
    place = logged[turn % len(logged)]
    head, brace, rest = lines[place].partition(b"{")
    if choose.random() < 0.1:
        head = choose.choice([b"", b"9999-12-31 23:59:59 | ", b"0001-01-01 00:00:00 | ", b"2024-02-30 00:00:00 | "])
    lines[place] = head + as_json(choose, brace + rest, turn // len(logged))
    return b"\n".join(lines)


def as_fields(choose: Choose, content: bytes, turn: int) -> bytes:
    """Alter a field of a tab-separated line and, sometimes, the number of lines."""
    lines = [line.split(b"\t") for line in content.split(b"\n")]
    fields = choose.choice(lines[:-1])
    text = str(choose.choice([*NUMBERS[:-1], *TEXTS]))
    fields[choose.randrange(len(fields))] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(map(b"\t".join, choose.choice([lines, lines, lines, lines[1:], [*lines[:-1], *lines]])))


def as_words(choose: Choose, content: bytes, turn: int) -> bytes:
    """Alter a word in a file of flags."""
    lines = [shlex.split(line, comments=True) for line in content.decode().replace("\\\n", " ").split("\n")]
    words = choose.choice([line for line in lines if line])
    place = choose.randrange(len(words))
    if choose.random() < 0.2:
        del words[place]
    else:
        words[place] = str(like(choose, words[place]))
    return "\n".join(map(shlex.join, lines)).encode("utf-8", "surrogatepass")
