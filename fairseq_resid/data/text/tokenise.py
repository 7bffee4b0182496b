"""Convert raw text to the form that is segmented into subwords.

An unusable pair is an error, except in training text with --clean, which drops the pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from . import clean, parallel
from .folder import PairCounts
from .forms import TextForm

PROBLEMS = {
    "not_utf8": "not UTF-8",
    "control_characters": "contains a NUL byte",
    "too_long": f"more than {clean.MAX_CHARACTERS:,} characters in a line",
}


def tokenise_shard(
    forms: tuple[TextForm, TextForm], cleaned: bool, shard: parallel.Shard, counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield the tokenised pairs of a shard that are kept, and count all of them."""
    for number, raw in enumerate(shard.pairs(), start=shard.first):
        counts["in"] += 1
        decoded = [clean.decode(line) for line in raw]
        reason = next((reason for _, reason in decoded if reason), None)
        if reason and not cleaned:
            file = shard.files[0 if decoded[0][1] else 1]
            raise ValueError(f"{file}:{number}: {PROBLEMS[reason]}; --clean drops such pairs")
        pair = (decoded[0][0], decoded[1][0])
        reason = reason or (clean.raw_reason(*pair) if cleaned else None)
        if not reason:
            # sentencepiece treats the remaining control characters as spaces. Line feeds are replaced below,
            # because a line must remain a single line.
            pair = (forms[0].to_model(pair[0]), forms[1].to_model(pair[1]))
            reason = clean.text_reason(*pair) if cleaned else None
        counts[reason or "out"] += 1
        if not reason:
            yield pair[0].replace("\n", " "), pair[1].replace("\n", " ")


def tokenise(
    what: str,
    texts: Sequence[tuple[Path, Path]],
    outputs: tuple[Path, Path],
    forms: tuple[TextForm, TextForm],
    cleaned: bool,
    workers: int,
) -> PairCounts:
    """Write one or more parallel texts, one after the other, in the form that is segmented into subwords.

    Raises: ValueError naming the file and line of unusable text, if cleaning is off.
    """
    counts = parallel.transform(what, texts, outputs, partial(tokenise_shard, forms, cleaned), workers)
    reasons = clean.RAW_REASONS if cleaned else ()
    return PairCounts(counts["in"], counts["out"], {reason: counts[reason] for reason in reasons})
