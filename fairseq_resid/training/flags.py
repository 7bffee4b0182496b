"""fairseq-train's flags as words: what was given, last one first to count, and what two commands differ in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

FLAG = re.compile(r"--?[A-Za-z]")

Options = dict[str, tuple[str, ...]]


def groups(words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the words by flag, in order: (flag, its values); what stands before the first flag is under "".

    >>> groups(["data", "--lr", "0.1", "--fp16", "--adam-betas=(0.9, 0.98)"])
    [('', ('data',)), ('--lr', ('0.1',)), ('--fp16', ()), ('--adam-betas', ('(0.9, 0.98)',))]
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    for word in words:
        if FLAG.match(word):
            flag, equals, value = word.partition("=")
            found.append((flag, (value,) if equals else ()))
        else:
            flag, values = found.pop() if found else ("", ())
            found.append((flag, (*values, word)))
    return found


def options(words: Sequence[str]) -> Options:
    """Return the values of every flag; of a flag that is given twice the last, as fairseq takes it."""
    return dict(groups(words))


def without(words: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Return the words without these flags and their values."""
    dropped = set(flags)
    return [
        word for flag, values in groups(words) if flag not in dropped for word in ((flag, *values) if flag else values)
    ]


def integer(given: Options, flag: str, default: int | None = None) -> int | None:
    """Return the value of a flag that takes one whole number, 1 or more; `default` where it is not given.

    Raises: ValueError naming the flag and what was given.
    """
    if flag not in given:
        return default
    values = given[flag]
    if len(values) != 1 or not re.fullmatch(r"[1-9]\d*", values[0].replace(",", "").replace("_", "")):
        raise ValueError(f"{flag} {' '.join(values)}: one whole number, 1 or more, is needed")
    if "," in values[0]:
        raise ValueError(f"{flag} {values[0]}: one number is needed, so that the effective batch is one")
    return int(values[0])


def changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return what differs between two commands, a phrase per flag.

    >>> changes(["data", "--lr", "1"], ["data", "--lr", "2", "--bf16"])
    ['--lr was 1, now 2', '--bf16 was not given, now given']
    """
    old, new = options(before), options(now)

    def told(given: Options, flag: str) -> str:
        return "not given" if flag not in given else " ".join(given[flag]) or "given"

    names = [*old, *(flag for flag in new if flag not in old)]
    return [
        f"{flag or 'the data'} was {told(old, flag)}, now {told(new, flag)}"
        for flag in names
        if old.get(flag) != new.get(flag)
    ]
