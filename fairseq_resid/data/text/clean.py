"""Which training pairs are dropped, and why: each pair is counted under the first reason that fits.

    of the raw text      not_utf8               a side is not UTF-8
                         too_long               a side is longer than 10,000 characters
                         control_characters     a side holds one (category Cc) besides tab and the line's own end
                         source_equals_target   the sides are the same but for spaces around them
    of the model's text  empty                  a side is empty
    of all pairs         repeated               the pair came before (--deduplicate)
                         in_evaluation          it is a valid or test pair (--deduplicate)
    of the subwords      length                 a side has fewer than 1 or more than 250 subwords (--max-pieces)
                         ratio                  one side has more than 1.5 times as many as the other (--max-ratio)

Length and ratio are counted in subwords, as fairseq's preparation scripts do with Moses' clean-corpus-n.perl. Counted
in words, the ratio would drop 28% of IWSLT'15 EN-VI, whose Vietnamese is written in syllables. Repeated pairs stay
unless --deduplicate is given. Valid and test text is never dropped. If cleaning is off, nothing is dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARACTERS = 10_000
# A line of so many bytes is too long whatever it says; nothing reads further.
MAX_BYTES = 4 * MAX_CHARACTERS
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")

RAW_REASONS = ("not_utf8", "too_long", "control_characters", "empty", "source_equals_target")
SUBWORD_REASONS = ("length", "ratio")


@dataclass(frozen=True)
class Limits:
    """Which pairs are dropped for their subwords: too many on a side, or too many more than on the other side."""

    max_pieces: int
    max_ratio: float

    def reason(self, source: int, target: int) -> str | None:
        """Return why a pair with so many subwords on each side is dropped, if it is."""
        if not (1 <= source <= self.max_pieces and 1 <= target <= self.max_pieces):
            return "length"
        return "ratio" if max(source, target) > self.max_ratio * min(source, target) else None


def decode(raw: bytes) -> tuple[str, str | None]:
    """Return a raw line as text without its line end, and the reason why it cannot be used, if there is one.

    A carriage return before the line end is part of the line end.
    """
    raw = raw.rstrip(b"\n").removesuffix(b"\r")
    if len(raw) > MAX_BYTES:
        return "", "too_long"
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "", "not_utf8"
    if len(line) > MAX_CHARACTERS:
        return "", "too_long"
    return (line, None) if "\0" not in line else ("", "control_characters")


def raw_reason(source: str, target: str) -> str | None:
    """Return why a pair of raw lines is dropped, if it is."""
    if CONTROL.search(source) or CONTROL.search(target):
        return "control_characters"
    # Here, as normalisation and tokenisation differ between the languages; empty sides have their own reason.
    return "source_equals_target" if source.strip() and source.strip() == target.strip() else None


def text_reason(source: str, target: str) -> str | None:
    """Return why a pair of lines, as sentencepiece will see them, is dropped, if it is."""
    return None if source.strip() and target.strip() else "empty"
