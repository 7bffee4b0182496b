"""fairseq-train's flags in a list of arguments: their values, and in what two commands differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

FLAG = re.compile(r"--?[A-Za-z]")
# fairseq's other name of a flag.
SYNONYMS = {"--max-sentences": "--batch-size", "--max-sentences-valid": "--batch-size-valid"}

Options = dict[str, tuple[str, ...]]


def groups(argv: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the arguments by flag, in order: (flag, its values); what stands before the first flag is under "".

    >>> groups(["data", "--lr", "0.1", "--fp16", "--adam-betas=(0.9, 0.98)"])
    [('', ('data',)), ('--lr', ('0.1',)), ('--fp16', ()), ('--adam-betas', ('(0.9, 0.98)',))]
    """
    grouped: list[tuple[str, tuple[str, ...]]] = []
    for word in argv:
        if FLAG.match(word):
            flag, equals, value = word.partition("=")
            grouped.append((SYNONYMS.get(flag, flag), (value,) if equals else ()))
        else:
            flag, values = grouped.pop() if grouped else ("", ())
            grouped.append((flag, (*values, word)))
    return grouped


def options(argv: Sequence[str]) -> Options:
    """Return the values of every flag; of a flag that is given twice the last, as fairseq takes it."""
    return dict(groups(argv))


def without(argv: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Return the arguments without these flags and their values."""
    dropped = set(flags)
    return [
        word for flag, values in groups(argv) if flag not in dropped for word in ((flag, *values) if flag else values)
    ]


def integer(given: Options, flag: str, default: int | None = None, least: int = 1) -> int | None:
    """Return the value of a flag that takes one whole number; `default` if it is not given.

    Raises: ValueError naming the flag, what was given and what is allowed.
    """
    if flag not in given:
        return default
    values = given[flag]
    if len(values) != 1 or not re.fullmatch(r"\d+", values[0]) or int(values[0]) < least:
        raise ValueError(f"{flag} {' '.join(values)}: one whole number, {least} or more, is needed")
    return int(values[0])


def changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return what differs between two commands, a phrase per flag.

    >>> changes(["data", "--lr", "1"], ["data", "--lr", "2", "--bf16"])
    ['--lr was 1, now 2', '--bf16 was not given, now given']
    """
    old, new = options(before), options(now)

    def value(given: Options, flag: str) -> str:
        return "not given" if flag not in given else " ".join(given[flag]) or "given"

    names = [*old, *(flag for flag in new if flag not in old)]
    return [
        f"{flag or 'the data'} was {value(old, flag)}, now {value(new, flag)}"
        for flag in names
        if old.get(flag) != new.get(flag)
    ]
