"""How well a perfect model could score: text taken to the model and back, against the untouched reference.

What is lost on that way no training brings back. Every line that does not come back is counted under the first cause:

    unknown      a subword of it is not in the vocabulary
    normalizer   sentencepiece's normaliser changed it before it was cut (nmt_nfkc: Unicode's NFKC, and spaces)
    form         normalisation, tokenisation or escapes are not undone exactly (fairseq_resid/text.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..folders.files import read_lines
from ..text import TextForm

CAUSES = ("unknown", "normalizer", "form")
REFUSED = 95.0  # BLEU: below it the corpus is not worth training on
WARNED = 99.0


def join(pieces: str) -> str:
    """Return the text of a line of pieces, as fairseq's --post-process sentencepiece does."""
    return pieces.replace(" ", "").replace("\u2581", " ").strip()


def round_trip(pieces: Path, reference: Path, form: TextForm, tokenize: str, model: Path) -> dict[str, Any]:
    """Score what comes back where a text is taken to the model and restored.

    pieces: the reference text as the model shall write it; model: what cut it; tokenize: sacrebleu's name
    Returns: lines that are the same, of how many; BLEU with its signature; the others by cause; the first of them.
    """
    import sentencepiece
    from sacrebleu.metrics.bleu import BLEU

    normalizer = sentencepiece.SentencePieceNormalizer(model_file=str(model))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    known = {processor.id_to_piece(number) for number in range(processor.vocab_size())}
    references, restored = read_lines(reference), []
    lost = dict.fromkeys(CAUSES, 0)
    example = None
    for number, (line, cut) in enumerate(zip(references, read_lines(pieces), strict=True), start=1):
        # fairseq writes <unk> for what is not in its dictionary.
        there = cut.split(" ") if cut else []
        possible = [piece if piece in known else "<unk>" for piece in there]
        restored.append(form.restore(join(" ".join(possible))))
        if restored[-1] == line:
            continue
        is_changed = join(normalizer.normalize(line)) != line
        cause = "unknown" if possible != there else "normalizer" if is_changed else "form"
        lost[cause] += 1
        example = example or {"line": number, "cause": cause, "reference": line, "restored": restored[-1]}
    # Text scored by its own tokens is tokenised on purpose: no warning.
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")
    return {
        "exact": len(references) - sum(lost.values()),
        "of": len(references),
        "bleu": round(metric.corpus_score(restored, [references]).score, 2),
        "signature": metric.get_signature().format(),
        "lost": lost,
        "example": example,
    }


def judge(name: str, trips: Mapping[str, Mapping[str, Any]], normalizer: str, sampled: bool, accepted: bool) -> None:
    """Warn of a ceiling below 99 BLEU.

    sampled: of --limit, where a small training text misses characters of the others; accepted: --allow-low-ceiling
    Raises: ValueError below 95, saying why, unless it is sampled or accepted.
    """
    for split, trip in trips.items():
        if trip["bleu"] >= WARNED:
            continue
        said = (
            f"a perfect model would score BLEU {trip['bleu']:.2f} on the {split} text: "
            f"{trip['of'] - trip['exact']:,} of {trip['of']:,} lines do not come back: {why(trip, normalizer)}"
        )
        if trip["bleu"] < REFUSED and not (sampled or accepted):
            raise ValueError(f"{name}: {said} (--allow-low-ceiling goes on all the same)")
        print(f"warning: {said}", flush=True)


def why(trip: Mapping[str, Any], normalizer: str) -> str:
    """Return the causes with their remedies, the most frequent first, and the first line that is lost."""
    remedies = {
        "unknown": "have characters that the subwords were not learned from",
        "normalizer": "hold ▁ (U+2581), which sentencepiece takes for a space, or spaces that it joins"
        if normalizer == "identity"
        else f"are changed by sentencepiece's normaliser {normalizer}: take the text to Unicode's NFC form, "
        "or give --spm-normalizer identity",
        "form": "are not restored exactly: punctuation normalisation of the target (--normalize source or none "
        "leaves it), or a tokenisation that cannot be undone",
    }
    ordered = sorted(CAUSES, key=lambda cause: -trip["lost"][cause])
    counts = "; ".join(f"{trip['lost'][cause]:,} {remedies[cause]}" for cause in ordered if trip["lost"][cause])
    example = trip["example"]
    return f"{counts}. Line {example['line']}: {example['reference']!r} becomes {example['restored']!r}"
