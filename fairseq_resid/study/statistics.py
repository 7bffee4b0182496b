"""The difference between arms: its standard error over seeds and sentences, interval, p-value and power.

Every score is the mean of a table of values, with one row per seed and one column per sentence. Arms are trained with
independent seeds and scored on the same sentences, so a value has four parts:

    value[arm, seed, sentence] = mean[arm] + seed[arm, seed] + sentence[arm, sentence] + residual

This is an unbiased estimate of the variance of a difference of arm means over new seeds and new sentences:

    V = V_seeds + V_sentences - V_residual

    V_seeds      sum over arms of the variance of the seeds' scores / seeds
    V_sentences  variance over sentences of the difference of the arms' means / sentences
    V_residual   sum over arms of the residual mean square / (seeds · sentences)

V_residual is subtracted because the first two terms both contain the residual. V_sentences - V_residual estimates the
variance due to sentences and is clamped at 0. The interval and p both use t with Satterthwaite's degrees of freedom for
V. If all sentences differ by the same amount, this is Welch's test over seeds. Searle, Casella & McCulloch 1992,
"Variance Components".

NLL, error, CIDEr and BLEU are functions of sums over N sentences (or images). The values of a measure θ are its
jackknife pseudo-values, N·θ - (N - 1)·θ', where θ' is computed without the sentence. For a mean, these are the
sentences' own values; for BLEU, they linearise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL, POWER = 0.05, 0.80
Array = Any  # a NumPy array; NumPy's type hints add little


def pseudo_values(parts: Array, score: Callable[[Array], float]) -> Array:
    """Return the jackknife pseudo-values of a score, one per sentence, centred on the score itself.

    parts: (sentences, k) terms that are summed over sentences; score: computes the measure from the k sums
    """
    total, count = parts.sum(axis=0), len(parts)
    whole = score(total)
    if count < 2:
        return np.full(count, whole)
    values = count * whole - (count - 1) * np.array([score(rest) for rest in total - parts])
    return values - values.mean() + whole


@dataclass(frozen=True)
class Effect:
    """A difference of means: an arm's minus the baseline's.

    error: standard error over seeds and sentences; freedom: Satterthwaite's degrees of freedom
    low, high: 95% interval; p: two-sided, for no difference, from the same standard error
    visible: approximately the smallest true difference that the test detects with 80% power
    All fields except the difference are None if an arm has a single seed, or if a difference is not tested.
    """

    difference: float
    error: float | None = None
    freedom: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    visible: float | None = None


def effect(combination: Sequence[tuple[float, Array]]) -> Effect:
    """Estimate the sum of sign · mean over arms: (1, arm), (-1, baseline), or four of them for an interaction.

    Each arm is a table of values, (seeds, sentences). All arms are scored on the same sentences.
    """
    difference = float(sum(sign * values.mean() for sign, values in combination))
    if any(len(values) < 2 for _, values in combination):
        return Effect(difference)
    variance, freedom = two_way_variance(combination)
    error = math.sqrt(variance)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom))
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)
    visible = (reach + float(stats.t.ppf(POWER, freedom))) * error
    return Effect(difference, error, freedom, difference - reach * error, difference + reach * error, p, visible)


def two_way_variance(combination: Sequence[tuple[float, Array]]) -> tuple[float, float]:
    """Return the variance of a signed sum of means, and its degrees of freedom (Satterthwaite)."""
    sentences = combination[0][1].shape[1]
    seeds: list[tuple[float, float]] = []  # components with their degrees of freedom
    residual: list[tuple[float, float]] = []
    contrast = np.zeros(sentences)
    for sign, values in combination:
        count, by_seed, by_sentence = len(values), values.mean(axis=1), values.mean(axis=0)
        contrast += sign * by_sentence
        seeds.append((sign**2 * float(by_seed.var(ddof=1)) / count, count - 1))
        # Residual sum of squares: that of the table minus those of its rows and columns.
        squares = float(((values - by_seed[:, None] - by_sentence + by_seed.mean()) ** 2).sum())
        free = (count - 1) * (sentences - 1)
        residual.append((sign**2 * squares / free / (count * sentences) if free else 0.0, free))
    shared = [(float(contrast.var(ddof=1)) / sentences, sentences - 1)] if sentences > 1 else []
    own = sum(part for part, _ in shared) - sum(part for part, _ in residual)
    components = [*seeds, *shared, *residual] if own > 0 else seeds
    variance = sum(part for part, _ in seeds) + max(0.0, own)
    spread = sum(part**2 / free for part, free in components if free)
    return variance, variance**2 / spread if spread else float(sum(free for _, free in seeds))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return Holm-corrected p-values: the k-th smallest of m is multiplied by m - k + 1, and is never less than the
    previous one.

    None stays None and is not counted.
    """
    known = np.array([value for value in p if value is not None])
    order = known.argsort()
    known[order] = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1)).clip(max=1)
    corrected = iter(known.tolist())
    return [None if value is None else next(corrected) for value in p]
