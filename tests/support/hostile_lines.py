"""Hostile text and damaged files, generated from a seed: unusual but valid lines, unusable lines, damaged bytes."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from typing import Any

Choose = random.Random

# Characters other than LF at which str.splitlines breaks lines.
BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"
SPACES = " \t\xa0\u1680\u2000\u2003\u2007\u2009\u200a\u202f\u205f\u3000"
JOINERS = "\u200b\u200c\u200d\u2060\ufeff\xad\u034f\u180e"
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
RIGHT_TO_LEFT = "אבגדהוזחטابتثجحخدذرזܐܒܓހށނߊߋ"
EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "🇻🇳", "👍🏽", "1️⃣", "❤️‍🔥", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☺︎", "🇪🇺🇩", "\u200d", "\ufe0f", "🏿")
SPECIAL = r"""
<s> </s> <pad> <unk> <mask> <s><s> x</s> ### ## # @@ ab@@ @-@ ||| | ##AT##-##AT## #fairseq:overwrite madeupword0000
<Lua heritage> <2vi> -- --flag - NaN nan null None 1e999 ~ $(true) `true` $HOME %s %d {0} {} \ \n \u2028 ' " ''' // ..
../ * ? ! [ ] & ; <!-- --> ]]> <seg> </seg> <a:b> 0 -0 --- ...
""".split()  # noqa: SIM905
ESCAPES = (
    "&amp;",
    "&#124;",
    "&quot;",
    "&apos;",
    "&lt;",
    "&gt;",
    "&#91;",
    "&#93;",
    "&amp;amp;",
    "&#x0;",
    "&",
    ";",
    "&nbsp;",
)
LOGGED = (
    "H-{}\t-0.5\t▁a",
    "S-{}\t▁a ▁b",
    "T-{}\ta b",
    "D-{}\t-0.5\ta b",
    "P-{}\t-0.5 -0.5",
    "D-{}",
    "D-x\t\t",
    '2024-01-01 00:00:00 | INFO | train | {{"epoch": 1, "num_updates": "{}", "loss": "x"}}',
    '{{"num_updates": {}}}',
    "2024-01-01 00:00:00 | INFO | fairseq_cli.train | {{",
    "Translate {} with beam=4: BLEU4 = 1.0",
)
CASING = "İıIiißẞŉǰΐΰևẖﬀﬁﬃſKÅΣςǅǆᾳ"


@cache
def assigned() -> list[str]:
    """Return every assigned Unicode character in order, except controls and surrogates."""
    return [chr(at) for at in range(sys.maxunicode + 1) if unicodedata.category(chr(at)) not in ("Cn", "Cs", "Cc")]


@cache
def of_category(*names: str) -> list[str]:
    return [character for character in assigned() if unicodedata.category(character) in names]


def some(choose: Choose, of: Any, least: int = 1, most: int = 12, between: str = " ") -> str:
    return between.join(choose.choices(of, k=choose.randint(least, most)))


def _anything(choose: Choose) -> str:
    points = (choose.randrange(0x110000) for _ in range(choose.randint(1, 30)))
    return "".join(chr(at) for at in points if not 0xD800 <= at < 0xE000 and at not in (0, 10))


def _script(choose: Choose) -> str:
    start = choose.randrange(len(assigned()))
    letters = assigned()[start : start + 40]
    return " ".join("".join(choose.choices(letters, k=choose.randint(1, 8))) for _ in range(choose.randint(1, 6)))


def _stacked(choose: Choose) -> str:
    marks = of_category("Mn", "Me", "Mc")
    return "".join(
        some(choose, "aоאก", 1, 3, "") + some(choose, marks, 1, 200, "") for _ in range(choose.randint(1, 3))
    )


def _outside(choose: Choose) -> str:
    last = [chr(plane * 0x10000 + end) for plane in range(17) for end in (0xFFFE, 0xFFFF)]
    return some(
        choose, [*last, *map(chr, range(0xFDD0, 0xFDF0)), "\ue000", "\uf8ff", "\U000f0000", "\U0010fffd"], 1, 20, ""
    )


def _long(choose: Choose) -> str:
    unit = choose.choice(["a", "word ", "ж", "漢", "👍", "a\u0301", "1", ".", "' ", "<"])
    return (unit * 10_000)[: choose.choice([300, 2000, 9_999, 10_000])]


def _mixed(choose: Choose) -> str:
    return choose.choice(["", " ", "\u200b"]).join(
        choose.choice(PLAIN_KINDS)(choose) for _ in range(choose.randint(2, 4))
    )


# UTF-8 text without NUL or LF, with at most 10,000 characters.
VALID: dict[str, Callable[[Choose], str]] = {
    "words": lambda choose: some(choose, ["the", "old", "fox", "sees", "a", "river", ".", ","]),
    "any code points": _anything,
    "one script": _script,
    "line breaks of other tools": lambda choose: some(choose, ["a", "b c", *BREAKS, "\r\r", "\r "], 1, 9, ""),
    "stacked marks": _stacked,
    "right to left": lambda choose: some(choose, [*RIGHT_TO_LEFT, *BIDI, " ", "1", "("], 1, 30, ""),
    "emoji": lambda choose: some(choose, EMOJI, 1, 12, choose.choice(["", " "])),
    "joiners": lambda choose: some(choose, [*JOINERS, "a", "ि", " "], 1, 12, ""),
    "outside": _outside,
    "sentencepiece's space": lambda choose: some(choose, ["▁", "▁a", "a▁b", " ", "▅", "▁▁"], 1, 9, ""),
    "special words": lambda choose: some(choose, SPECIAL),
    "escapes": lambda choose: some(choose, [*ESCAPES, "a", " "], 1, 12, ""),
    "log lines": lambda choose: choose.choice(LOGGED).format(choose.randrange(9)),
    "controls": lambda choose: some(
        choose, [*map(chr, range(1, 10)), "\x0e", "\x1b[2J", "\x7f", "\x9b", "a"], 1, 9, ""
    ),
    "spaces": lambda choose: some(choose, SPACES, 1, 9, ""),
    "empty": lambda choose: "",
    "numbers": lambda choose: some(choose, [*of_category("Nd", "Nl", "No"), ".", ","], 1, 30, choose.choice(["", " "])),
    "case": lambda choose: some(choose, CASING, 1, 12, ""),
    "long": _long,
    "byte-order mark": lambda choose: "\ufeff" + some(choose, "ab", 0, 3),
}
PLAIN_KINDS = [kind for name, kind in VALID.items() if name != "long"]
VALID["mixed"] = _mixed


def _no_utf8(choose: Choose) -> bytes:
    while True:
        found = bytes(choose.randrange(256) for _ in range(choose.randint(1, 30))).replace(b"\n", b"")
        try:
            found.decode()
        except UnicodeDecodeError:
            return found


BAD: dict[str, Callable[[Choose], bytes]] = {
    "bytes": _no_utf8,
    "surrogates": lambda choose: b"a\xed" + bytes([choose.randrange(0xA0, 0xC0), choose.randrange(0x80, 0xC0)]),
    "overlong": lambda choose: choose.choice(
        [b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xf0\x80\x80\x8a", b"a\xc0\x8a"]
    ),
    "cut off": lambda choose: choose.choice(["ж", "漢", "👍"]).encode()[: choose.choice([-1, -1, 1])],
    "beyond Unicode": lambda choose: choose.choice([b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xfe\xff"]),
    "Latin-1": lambda choose: some(choose, "éüßñ", 1, 9).encode("latin-1"),
    "UTF-16": lambda choose: b"\xff\xfe" + some(choose, "abж", 1, 9).encode("utf-16-le"),
    "NUL": lambda choose: some(choose, "a\0", 0, 5).encode() + b"\0",
    "too many characters": lambda choose: (
        choose.choice([b"a", "ж".encode()]) * choose.choice([10_001, 20_000, 1_000_000])
    ),
}


def valid(seed: int, count: int, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield `count` valid lines of text, cycling through all kinds."""
    choose = random.Random(seed)
    kinds = cycle(kind for name, kind in VALID.items() if name not in without)
    for _ in range(count):
        yield next(kinds)(choose)[:10_000]


def bad(seed: int, count: int, without: tuple[str, ...] = ()) -> Iterator[bytes]:
    """Yield `count` unusable lines, cycling through all kinds."""
    choose = random.Random(seed)
    kinds = cycle(kind for name, kind in BAD.items() if name not in without)
    for _ in range(count):
        yield next(kinds)(choose)


def any_lines(seed: int, count: int, share: float = 0.2) -> Iterator[bytes]:
    """Yield a mixture of valid and unusable lines; each is unusable with probability `share`."""
    choose = random.Random(seed)
    sorts = valid(seed, count), bad(seed, count)
    for _ in range(count):
        yield next(sorts[1]) if choose.random() < share else next(sorts[0]).encode()


# ------------------------------------------------------------------------------------------------ damaged files

ODD = (None, True, -1, 0, 10**30, 1e308, "", "x", "\0", "\ud800", [], {}, [[]], {"": {}}, "NaN", "1e999", "٣", " 1 ")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from _paths(item, (*path, key))


def altered(choose: Choose, value: Any) -> Any:
    """Return a JSON value in which one part is removed or replaced by an odd value."""
    value = json.loads(json.dumps(value))
    path = choose.choice(list(_paths(value)))
    if not path:
        return choose.choice(ODD)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    if choose.random() < 0.3:
        del inside[path[-1]]
    else:
        inside[path[-1]] = choose.choice(ODD)
    return value


def damaged(choose: Choose, content: bytes) -> bytes:
    """Return a file's content with bytes changed, removed, inserted, repeated or cut off, or other content."""
    found = bytearray(content)
    for _ in range(choose.choice([1, 1, 1, 2, 5, 30])):
        start = choose.randrange(len(found) + 1)
        end = min(len(found), start + choose.choice([1, 1, 2, 8, 100]))
        how = choose.randrange(8)
        if how == 0:
            del found[start:]
        elif how == 1:
            del found[start:end]
        elif how == 2:
            found[start:end] = bytes(choose.randrange(256) for _ in range(end - start))
        elif how == 3:
            found[start:start] = found[start:end] * choose.choice([1, 2, 50])
        elif how == 4:
            found[start:start] = choose.choice(
                [
                    b"[",
                    b"{",
                    b'"',
                    b"\0",
                    b"\xff",
                    b"\n",
                    b"- ",
                    b": ",
                    b"&a ",
                    b"*a",
                    b"!!int ",
                    b"? ",
                    b"1",
                    b"-",
                    b"e9",
                    b"\xe2\x80\xa8",
                ]
            )
        elif how == 5 and end > start:
            found[start] ^= 1 << choose.randrange(8)
        elif how == 6:
            found[start:end] = choose.choice(list(VALID.values()))(choose)[:200].encode()
        else:
            found = bytearray(choose.choice([b"", b'{"a":' * 50_000, bytes(found) * 2, found[::-1], found]))
    return bytes(found)
