"""Checks of the prepared text: the best possible score, repeated pairs, and evaluation text in the training text.

The best possible score is that of text which was segmented into subwords and restored, compared with the original
reference. Training cannot recover anything that this round trip loses. Every changed line is counted under its first
cause:

    unknown      a subword does not occur in the segmented training text
    normalizer   sentencepiece's normaliser changed the line before segmentation (nmt_nfkc: NFKC and spaces)
    form         normalisation, tokenisation or escapes cannot be undone exactly (fairseq_resid/data/text/forms.py)

Repeated lines are found in the form that the model receives: after normalisation, tokenisation and cleaning. In
particular, lines are equal if they differ only in what the subword model's own normalisation removes, such as repeated
spaces.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ...cli.progress import Progress
from ...console import say
from ...files import read_lines
from .bleu import metric, perfect
from .folder import LostLine, Overlap, PairCounts, RoundTrip
from .forms import TextForm
from .parallel import Sides
from .segmentation import Segmenter

CAUSES = ("unknown", "normalizer", "form")
REFUSED = 95.0  # BLEU; below it the corpus is not worth training on
WARNED = 99.0
# Number of pairs per update of the progress bar.
TOGETHER = 10_000


def round_trip(
    subwords: Path,
    reference: Path,
    form: TextForm,
    tokenize: str,
    segmenter: Segmenter,
    normalise: Callable[[str], str],
    known: Set[str],
) -> RoundTrip:
    """Score a reference text after the round trip through subwords.

    subwords: the segmented reference; tokenize: name of the sacrebleu tokenizer
    normalise: the normalisation before segmentation
    known: the subwords of the training text, which fairseq's dictionary contains
    """
    references, restored = [form.reference(line) for line in read_lines(reference)], []
    lost = dict.fromkeys(CAUSES, 0)
    example = None
    for number, (line, cut) in enumerate(zip(references, read_lines(subwords), strict=True), start=1):
        # fairseq writes <unk> for a subword that is not in its dictionary.
        wanted = cut.split(" ") if cut else []
        possible = [subword if subword in known else "<unk>" for subword in wanted]
        restored.append(form.restore(segmenter.join(" ".join(possible))))
        if restored[-1] == line:
            continue
        is_changed = segmenter.join(normalise(line)) != line
        cause = "unknown" if not set(wanted) <= known else "normalizer" if is_changed else "form"
        lost[cause] += 1
        example = example or LostLine(number, cause, line, restored[-1])
    measured = metric(tokenize)
    bleu = round(measured.corpus_score(restored, [references]).score, 2)
    exact = len(references) - sum(lost.values())
    best = round(perfect(references, tokenize), 2)
    return RoundTrip(exact, len(references), bleu, measured.get_signature().format(), lost, example, best)


def judge(name: str, trips: Mapping[str, RoundTrip], normalizer: str, sampled: bool, accepted: bool) -> None:
    """Warn if the best possible BLEU is below 99. For references too short for BLEU, the share of exact lines counts.

    sampled: --limit is used, so the training text may lack characters of the other texts; accepted: --allow-low-ceiling
    Raises: ValueError with the causes if it is below 95, unless sampled or accepted.
    """
    for split, trip in trips.items():
        if trip.perfect < 100:
            say(
                f"warning: a perfect translation of the {split} text would score BLEU {trip.perfect:.2f}, because none "
                f"of its references has four tokens ({trip.signature}); use chrF"
            )
        best = trip.bleu if trip.perfect >= 100 else 100 * trip.exact / trip.of
        if best >= WARNED or trip.exact == trip.of:
            continue
        message = (
            f"subwords cannot reproduce {trip.of - trip.exact:,} of the {trip.of:,} lines of the {split} text: "
            f"{why(trip, normalizer)}"
        )
        if trip.perfect >= 100:
            message = f"the best possible BLEU on the {split} text is {trip.bleu:.2f}, because {message}"
        if best < REFUSED and not (sampled or accepted):
            raise ValueError(f"{name}: {message} (use --allow-low-ceiling to accept this)")
        say(f"warning: {message}")


def why(trip: RoundTrip, normalizer: str) -> str:
    """Return the causes with their remedies, most frequent first, and the first line that changes."""
    remedies = {
        "unknown": "contain characters that are missing from the training text, or that occur there only inside longer "
        "subwords (a smaller --vocab-size avoids this)",
        "normalizer": "contain ▁ (U+2581), which sentencepiece treats as a space, or repeated spaces, which it merges"
        if normalizer == "identity"
        else f"are changed by sentencepiece's normaliser {normalizer}: use --spm-normalizer identity",
        "form": "cannot be restored exactly: the target's punctuation is normalised (--normalize source or none "
        "avoids this), or its tokenisation cannot be undone",
    }
    ordered = sorted(CAUSES, key=lambda cause: -trip.lost[cause])
    counts = "; ".join(f"{trip.lost[cause]:,} {remedies[cause]}" for cause in ordered if trip.lost[cause])
    first = trip.example
    return counts + (f". Line {first.line}: {first.reference!r} becomes {first.restored!r}" if first else "")


def overlap(train: Sides, evaluation: Mapping[str, Sides], total: int | None) -> dict[str, Overlap]:
    """Return the lines of each evaluation text that also occur in the training text, by split."""
    # The places (split, line) of all sources, targets and pairs, and those that are found in the training text.
    places: tuple[dict[Any, list[tuple[str, int]]], ...] = tuple(defaultdict(list) for _ in range(3))
    found: tuple[set[Any], ...] = (set(), set(), set())
    for split, files in evaluation.items():
        for number, pair in enumerate(_pairs(files), start=1):
            for known, key in zip(places, (*pair, pair), strict=True):
                known[key].append((split, number))
    for pair in _shown("compare", _pairs(train), total):
        for known, repeated, key in zip(places, found, (*pair, pair), strict=True):
            if key in known:
                repeated.add(key)

    def lines(split: str, known: dict[Any, list[tuple[str, int]]], repeated: set[Any]) -> tuple[int, ...]:
        return tuple(sorted(number for key in repeated for name, number in known[key] if name == split))

    return {split: Overlap(*(lines(split, *kind) for kind in zip(places, found, strict=True))) for split in evaluation}


def deduplicate(
    train: Sides, evaluation: Iterable[Sides], outputs: Sides, total: int | None, normalise: Callable[[str], str]
) -> PairCounts:
    """Write the training pairs that are neither `repeated` nor validation or test pairs (`in_evaluation`).

    normalise: the normalisation before segmentation, which is applied to the lines that are compared

    Pairs are compared by 64-bit hashes: 36M pairs take 0.3 GB, and in 1 of 28,000 corpora of this size a pair is
    dropped by mistake.
    """

    def hash_of(pair: tuple[bytes, bytes]) -> int:
        source, target = (normalise(line.decode()) for line in pair)
        return int.from_bytes(hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), "little")

    held_out = {hash_of(pair) for files in evaluation for pair in _pairs(files)}
    hashes = np.fromiter((hash_of(pair) for pair in _shown("hash", _pairs(train), total)), dtype=np.uint64)
    first = np.zeros(len(hashes), dtype=bool)
    first[np.unique(hashes, return_index=True)[1]] = True
    kept, dropped = 0, {"repeated": 0, "in_evaluation": 0}
    with outputs[0].open("wb") as source, outputs[1].open("wb") as target:
        for found, is_first, pair in zip(hashes, first, _shown("deduplicate", _pairs(train), total), strict=True):
            if int(found) in held_out or not is_first:
                dropped["in_evaluation" if int(found) in held_out else "repeated"] += 1
                continue
            kept += 1
            source.write(pair[0])
            target.write(pair[1])
    return PairCounts(len(hashes), kept, dropped)


def _pairs(files: Sides) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a text written by this preparation, in which every line ends in LF."""
    with ExitStack() as stack:
        source, target = (stack.enter_context(file.open("rb")) for file in files)
        yield from zip(source, target, strict=True)


def _shown(what: str, pairs: Iterator[tuple[bytes, bytes]], total: int | None) -> Iterator[tuple[bytes, bytes]]:
    with Progress(what, total, "pairs") as progress:
        for number, pair in enumerate(pairs, start=1):
            if number % TOGETHER == 0:
                progress.advance(TOGETHER)
            yield pair
