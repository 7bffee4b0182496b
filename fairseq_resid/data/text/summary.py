"""Print what a data folder of text contains."""

from __future__ import annotations

import sys
from pathlib import Path

from ...console import say
from ...files import read_lines
from .. import preparing
from .folder import CorpusRecord

# The fraction of a validation or test set that may also be in the training text without a warning.
LEAKAGE = 0.1


def show_result(out: Path, show: bool) -> None:
    """Print a summary of a data folder."""
    record = CorpusRecord.of(out)
    for split, lines in record.lines.items():
        sides = " and ".join(f"{count:,} {language}" for language, count in record.tokens[split].items())
        phrases = [f"{split}: {lines.kept:,} of {lines.read:,} pairs, {sides} subwords"]
        if lines.half_empty:
            remedy = " (--clean drops them)" if split == "train" else ""
            phrases.append(f"a side is empty in {lines.half_empty:,} of these pairs{remedy}")
        if trip := record.round_trip.get(split):
            best = "" if trip.exact == trip.of else f" (best possible BLEU: {trip.bleu:.2f}, {trip.signature})"
            phrases.append(f"{trip.exact:,} of {trip.of:,} {record.target} lines survive the subword round trip{best}")
        if overlap := record.overlap.get(split):
            counts = [f"{len(getattr(overlap, kind)):,} {kind}s" for kind in ("source", "target", "pair")]
            phrases.append(f"also in the training text: {', '.join(counts)}")
        say("; ".join(phrases))
        if overlap and len(overlap.pair) > lines.kept * LEAKAGE:
            repeated = f"{len(overlap.pair):,} of {lines.kept:,} pairs of {split} are also training pairs"
            remedy = "scores on them are too high; --deduplicate drops them from the training text"
            say(f"{out}: warning: {repeated}: {remedy}", file=sys.stderr)
    for fact, number_of in record.facts.items():
        say(f"{fact}: {', '.join(f'{count:,} {what}' for what, count in number_of.items())}")
    show_differences(record)
    if show:
        show_overlap(out, record)
    say(f"{out}: done")


def show_overlap(out: Path, record: CorpusRecord) -> None:
    """Print the validation and test sentences that also occur in the training text, in their original form."""
    if not record.overlap:
        raise ValueError(
            f"{out}: --show: this data folder has no record of repeated sentences, because an earlier version made it; "
            "prepare it again"
        )
    for split, overlap in record.overlap.items():
        source = read_lines(out / "ref" / f"{split}.{record.source}")
        target = read_lines(out / "ref" / f"{split}.{record.target}")
        pairs = [f"{left} ||| {right}" for left, right in zip(source, target, strict=True)]
        for kind, lines, text in (
            ("source", overlap.source, source),
            ("target", overlap.target, target),
            ("pair", overlap.pair, pairs),
        ):
            for line in lines:
                say(f"{split}:{line} {kind}: {text[line - 1]}")


def show_differences(record: CorpusRecord) -> None:
    if record.skipped:
        print(f"prepared without: {', '.join(f'{split} ({name})' for split, name in record.skipped.items())}")
    preparing.show_differences(record)
