"""Find the sentences that systems translate most differently, and mark the words that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST = 12  # sentences


@dataclass(frozen=True)
class Word:
    """A word of a translation, and whether it differs from the reference."""

    text: str
    is_marked: bool


@dataclass(frozen=True)
class Sample:
    """A sentence: its number from 1, source, reference, and the words and chrF of each system's translation."""

    number: int
    source: str
    reference: str
    translations: list[tuple[str, list[Word], float]]


def marked(line: str, reference: str) -> list[Word]:
    """Return a translation's words; words that a shortest edit from the reference changes are marked."""
    words, other = line.split(), reference.split()
    kept: set[int] = set()
    for block in SequenceMatcher(None, other, words, autojunk=False).get_matching_blocks():
        kept.update(range(block.b, block.b + block.size))
    return [Word(word, index not in kept) for index, word in enumerate(words)]


def samples(sources: Sequence[str], references: Sequence[str], systems: Mapping[str, Sequence[str]]) -> list[Sample]:
    """Return the sentences whose chrF differs most between systems, largest difference first; ties by position."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()

    def score(line: str, reference: str) -> float:
        return float(metric.sentence_score(line, [reference]).score)

    found = []
    for number, (source, reference) in enumerate(zip(sources, references, strict=True), start=1):
        lines = {name: hypotheses[number - 1] for name, hypotheses in systems.items()}
        scores = {name: score(line, reference) for name, line in lines.items()}
        spread = max(scores.values()) - min(scores.values())
        if len(systems) == 1 or len(set(lines.values())) > 1:
            found.append((-spread, number, source, reference, lines, scores))
    if len(systems) == 1:  # nothing to compare: show the worst translations
        found.sort(key=lambda row: (min(row[5].values()), row[1]))
    else:
        found.sort(key=lambda row: row[:2])
    return [
        Sample(
            number, source, reference, [(name, marked(line, reference), scores[name]) for name, line in lines.items()]
        )
        for _, number, source, reference, lines, scores in found[:MOST]
    ]
