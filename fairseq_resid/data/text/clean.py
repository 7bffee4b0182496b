"""Rules for dropping training pairs. A dropped pair is counted under the first reason that applies.

    raw text             not_utf8               a side is not UTF-8
                         too_long               a side is longer than 10,000 characters
                         control_characters     a side contains a character of category Cc other than tab or line end
                         source_equals_target   both sides are equal, apart from surrounding spaces
    tokenised text       empty                  a side is empty
    all pairs            repeated               the pair occurred before (--deduplicate)
                         in_evaluation          the pair is a validation or test pair (--deduplicate)
    subwords             length                 a side has fewer than 1 or more than 250 subwords (--max-pieces)
                         ratio                  one side has more than 1.5 times as many as the other

Lengths and ratios are based on numbers of subwords, as in fairseq's preparation scripts, which use Moses'
clean-corpus-n.perl. A ratio of words would drop 28% of 76,473 EN-VI pairs (docs/data.md), because Vietnamese puts a
space between syllables.
Validation and test text is never dropped. Only --deduplicate drops repeated pairs, with or without --clean. Without
--clean, a side that is not UTF-8, is too long or contains a NUL is an error, and all other pairs are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARACTERS = 10_000
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")

RAW_REASONS = ("not_utf8", "too_long", "control_characters", "empty", "source_equals_target")
SUBWORD_REASONS = ("length", "ratio")


@dataclass(frozen=True)
class Limits:
    """Limits on the subwords of a pair: the number on each side, and the ratio between the two sides."""

    max_pieces: int
    max_ratio: float

    def reason(self, source: int, target: int) -> str | None:
        """Return the reason to drop a pair with these numbers of subwords, or None."""
        if not (1 <= source <= self.max_pieces and 1 <= target <= self.max_pieces):
            return "length"
        return "ratio" if max(source, target) > self.max_ratio * min(source, target) else None


def decode(raw: bytes) -> tuple[str, str | None]:
    """Return a raw line as text without its line end, and the reason why it is unusable (None if it is usable).

    A carriage return before the line end is part of the line end.
    """
    try:
        line = raw.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return "", "not_utf8"
    if len(line) > MAX_CHARACTERS:
        return "", "too_long"
    return (line, None) if "\0" not in line else ("", "control_characters")


def raw_reason(source: str, target: str) -> str | None:
    """Return the reason to drop a pair of raw lines, or None."""
    if CONTROL.search(source) or CONTROL.search(target):
        return "control_characters"
    # The sides are compared as raw text, because normalisation and tokenisation differ between languages. Empty sides
    # have their own reason.
    return "source_equals_target" if source.strip() and source.strip() == target.strip() else None


def text_reason(source: str, target: str) -> str | None:
    """Return the reason to drop a pair of lines that are ready for segmentation, or None."""
    return None if source.strip() and target.strip() else "empty"
