"""What can be said of the difference between two arms: over seeds, and over seeds and sentences.

Welch's t        the seeds' scores as two samples of unequal variance
bootstrap        seeds drawn anew in each arm, sentences drawn anew for both arms together; difference ± t · the
                 spread of what is drawn: an interval for all seeds and all sentences of this kind, where Welch's
                 holds for these sentences alone. Seeds' deviations are drawn √(n / (n - 1)) times as large: of few
                 seeds those drawn anew vary less than new ones would
smallest effect  (t(1 - level/2) + t(power)) · standard error: what a study with this spread would have seen with
                 that power; with the test set's share if the sentences' standard error is part of it
Holm             p for several arms at once: the k-th smallest of m times m - k + 1, never less than the one before
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL, POWER = 0.05, 0.80
RESAMPLES = 2_000
SEED = 12345  # of the resampling
Array = Any  # numpy's, whose types say little


@dataclass(frozen=True)
class Scores:
    """An arm's scores: one for each seed, and what they are made of.

    parts: (seeds, sentences, k), what the measure adds up over sentences; score: k sums to the measure
    """

    parts: Array
    score: Callable[[Array], float]

    def by_seed(self, weights: Array | None = None) -> Array:
        """Return the measure of every seed; weights: how often each sentence counts."""
        summed = self.parts.sum(axis=1) if weights is None else np.einsum("s,nsk->nk", weights, self.parts)
        return np.array([self.score(one) for one in summed])


@dataclass(frozen=True)
class Effect:
    """A difference of means, an arm's less the baseline's.

    low, high: 95% interval by Welch, p: by Welch; boot_low, boot_high: by the bootstrap over seeds and sentences
    visible: about the smallest effect that these seeds would have shown; visible_all: with the test set's share
    With a single seed there is none of them.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None
    boot_low: float | None
    boot_high: float | None
    visible: float | None
    visible_all: float | None


Combination = Sequence[tuple[float, Scores]]


def effect(combination: Combination) -> Effect:
    """Return the sum of sign · mean over arms: (1, arm), (-1, baseline); with two more of them an interaction.

    All arms are scored on the same sentences.
    """
    samples = [(sign, scores.by_seed()) for sign, scores in combination]
    difference = float(sum(sign * sample.mean() for sign, sample in samples))
    welch = _welch(samples)
    if welch is None:
        return Effect(difference, None, None, None, None, None, None, None)
    error, freedom = welch
    drawn, by_sentence = resampled(combination)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom))
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)
    factor = reach + float(stats.t.ppf(POWER, freedom))
    return Effect(
        difference,
        difference - reach * error,
        difference + reach * error,
        p,
        difference - reach * drawn,
        difference + reach * drawn,
        factor * error,
        factor * math.hypot(error, by_sentence),
    )


def _welch(samples: Sequence[tuple[float, Array]]) -> tuple[float, float] | None:
    """Return the standard error of a sum of means, and its degrees of freedom (Welch and Satterthwaite)."""
    if any(len(sample) < 2 for _, sample in samples):
        return None
    shares = [(sign**2 * float(sample.var(ddof=1)) / len(sample), len(sample)) for sign, sample in samples]
    total = sum(share for share, _ in shares)
    if not total:
        return 0.0, float(sum(count - 1 for _, count in shares))
    return math.sqrt(total), total**2 / sum(share**2 / (count - 1) for share, count in shares)


def resampled(combination: Combination, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the spread of the difference over resamples of seeds and sentences, and over those of sentences alone."""
    generator = np.random.default_rng(SEED)
    sentences = combination[0][1].parts.shape[1]
    drawn, alone = np.zeros(resamples), np.zeros(resamples)
    for index in range(resamples):
        weights = np.bincount(generator.integers(sentences, size=sentences), minlength=sentences).astype(float)
        for sign, scores in combination:
            by_seed = scores.by_seed(weights)
            count, mean = len(by_seed), by_seed.mean()
            chosen = by_seed[generator.integers(count, size=count)].mean()
            drawn[index] += sign * (mean + math.sqrt(count / max(1, count - 1)) * (chosen - mean))
            alone[index] += sign * mean
    return float(drawn.std(ddof=1)), float(alone.std(ddof=1))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p corrected for that there are several, by Holm; None stays None."""
    known = sorted((value, index) for index, value in enumerate(p) if value is not None)
    found: list[float | None] = [None] * len(p)
    before = 0.0
    for rank, (value, index) in enumerate(known):
        before = max(before, min(1.0, value * (len(known) - rank)))
        found[index] = before
    return found
