"""How well a perfect model could score: text cut into subwords and restored, against the untouched reference.

No training brings back what is lost there. Every line that does not come back is counted under its first cause:

    unknown      a subword of it is not in the vocabulary: that of the sentencepiece model, or of the training text
    normalizer   sentencepiece's normaliser changed it before it was cut (nmt_nfkc: Unicode's NFKC, and spaces)
    form         normalisation, tokenisation or escapes are not undone exactly (fairseq_resid/data/text/forms.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...files import read_lines
from ...foreign import say
from .folder import LostLine, RoundTrip
from .forms import TextForm
from .segmentation import Segmenter

CAUSES = ("unknown", "normalizer", "form")
REFUSED = 95.0  # BLEU: below it the corpus is not worth training on
WARNED = 99.0


def vocabulary(segmenter: Segmenter, training: Sequence[Path]) -> set[str]:
    """Return the subwords that a model can write.

    training: both sides of the training text, cut into subwords
    """
    known = segmenter.known()
    if known is not None:
        return known
    found: set[str] = set()
    for path in training:
        with path.open(encoding="utf-8", newline="\n") as lines:
            found.update(subword for line in lines for subword in line.split())
    return found


def round_trip(
    subwords: Path, reference: Path, form: TextForm, tokenize: str, model: Path, kind: str, training: Sequence[Path]
) -> RoundTrip:
    """Score a reference text that was cut into subwords and is restored.

    subwords: the reference as the model shall write it; model, kind: of the subwords; tokenize: sacrebleu's name
    training: both sides of the training text, cut into subwords
    """
    from sacrebleu.metrics.bleu import BLEU

    segmenter = Segmenter(kind, model)
    known = vocabulary(segmenter, training)
    normalise = _normaliser(kind, model)
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
        cause = "unknown" if not known.issuperset(wanted) else "normalizer" if is_changed else "form"
        lost[cause] += 1
        example = example or LostLine(number, cause, line, restored[-1])
    # Text scored by its own tokens is tokenised on purpose: no warning.
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")
    bleu = round(metric.corpus_score(restored, [references]).score, 2)
    exact = len(references) - sum(lost.values())
    return RoundTrip(exact, len(references), bleu, metric.get_signature().format(), lost, example)


def _normaliser(kind: str, model: Path) -> Callable[[str], str]:
    """Return what changes text before it is cut; subword-nmt changes nothing."""
    if kind != "sentencepiece":
        return str
    import sentencepiece

    normalise: Callable[[str], str] = sentencepiece.SentencePieceNormalizer(model_file=str(model)).normalize
    return normalise


def judge(name: str, trips: Mapping[str, RoundTrip], normalizer: str, sampled: bool, accepted: bool) -> None:
    """Warn of a ceiling below 99 BLEU.

    sampled: by --limit: a small training text lacks characters of the other texts; accepted: --allow-low-ceiling
    Raises: ValueError below 95, saying why, unless it is sampled or accepted.
    """
    for split, trip in trips.items():
        if trip.bleu >= WARNED:
            continue
        message = (
            f"a perfect model would score BLEU {trip.bleu:.2f} on the {split} text: "
            f"{trip.of - trip.exact:,} of {trip.of:,} lines do not come back: {why(trip, normalizer)}"
        )
        if trip.bleu < REFUSED and not (sampled or accepted):
            raise ValueError(f"{name}: {message} (--allow-low-ceiling accepts this)")
        say(f"warning: {message}")


def why(trip: RoundTrip, normalizer: str) -> str:
    """Return the causes with their remedies, the most frequent first, and the first line that is lost."""
    remedies = {
        "unknown": "have characters that the subwords were not learned from",
        "normalizer": "hold ▁ (U+2581), which sentencepiece takes for a space, or spaces that it joins"
        if normalizer == "identity"
        else f"are changed by sentencepiece's normaliser {normalizer}: convert the text to Unicode's NFC form, "
        "or give --spm-normalizer identity",
        "form": "are not restored exactly: punctuation normalisation of the target (--normalize source or none "
        "leaves it), or a tokenisation that cannot be undone",
    }
    ordered = sorted(CAUSES, key=lambda cause: -trip.lost[cause])
    counts = "; ".join(f"{trip.lost[cause]:,} {remedies[cause]}" for cause in ordered if trip.lost[cause])
    first = trip.example
    return counts + (f". Line {first.line}: {first.reference!r} becomes {first.restored!r}" if first else "")
