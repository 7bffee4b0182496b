"""BLEU by sacrebleu against untouched reference text, never without its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A corpus BLEU score and the sacrebleu signature that says which BLEU it is."""

    bleu: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Score detokenised hypotheses against one raw reference each; `tokenize` is sacrebleu's name of a tokeniser.

    Raises: ValueError where the counts differ, there is nothing to score, or sacrebleu has no such tokeniser.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"bleu_tokenize {tokenize!r}: sacrebleu has {', '.join(sorted(BLEU.TOKENIZERS))}")
    # Text scored by its own tokens is tokenised on purpose: no warning.
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")
    score = metric.corpus_score(hypotheses, [references])
    return Score(bleu=score.score, signature=metric.get_signature().format())
