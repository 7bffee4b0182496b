"""The best possible score: text segmented into subwords and restored, compared with the original reference.

Training cannot recover anything that this round trip loses. Every changed line is counted under its first cause:

    unknown      a subword does not occur in the segmented training text
    normalizer   sentencepiece's normaliser changed the line before segmentation (nmt_nfkc: NFKC and spaces)
    form         normalisation, tokenisation or escapes cannot be undone exactly (fairseq_resid/data/text/forms.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from pathlib import Path

from ...console import say
from ...files import read_lines
from .bleu import metric, perfect
from .folder import LostLine, RoundTrip
from .forms import TextForm
from .segmentation import Segmenter

CAUSES = ("unknown", "normalizer", "form")
REFUSED = 95.0  # BLEU; below it the corpus is not worth training on
WARNED = 99.0


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
