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

With few seeds, V_seeds is uncertain. Pooled over the k arms of a setting that trained without divergence, the variance
of the seeds' scores has (all seeds - k) degrees of freedom, and the residual mean square (sentences - 1) times as many.
This assumes that seeds vary equally in all arms. The permutation test assumes only that the scores of the seeds could
be exchanged between two arms: its p is the proportion of all assignments of the scores to the arms whose means differ
at least as much as observed. It is about new seeds on the same sentences.

NLL, error, CIDEr and BLEU are functions of sums over N sentences (or images). The values of a measure θ are its
jackknife pseudo-values, N·θ - (N - 1)·θ', where θ' is computed without the sentence. For a mean, these are the
sentences' own values; for BLEU, they linearise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

LEVEL, POWER = 0.05, 0.80
ASSIGNMENTS = 200_000  # maximum number that a permutation test enumerates: enough for 10 seeds in each arm
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
class Pool:
    """Variances pooled over arms: of the seeds' scores, and the residual mean square; freedom: seeds minus arms."""

    seeds: float
    residual: float
    freedom: int

    @classmethod
    def of(cls, arms: Sequence[Array]) -> Pool | None:
        """Pool arms, (seeds, sentences); None if no arm has several seeds."""
        freedom, sentences = sum(len(values) - 1 for values in arms), arms[0].shape[1] if arms else 0
        if not freedom:
            return None
        by_seed = [values.mean(axis=1, keepdims=True) - values.mean() for values in arms]
        # What is left of a table without the means of its rows and columns.
        left = [values - values.mean(axis=0) - row for values, row in zip(arms, by_seed, strict=True)]
        seeds, residual = (sum(float((part**2).sum()) for part in parts) for parts in (by_seed, left))
        return cls(seeds / freedom, residual / (freedom * (sentences - 1)) if sentences > 1 else 0.0, freedom)


@dataclass(frozen=True)
class Pooled:
    """The 95% interval of an effect with variances pooled over all arms of its setting.

    sd: standard deviation of the seeds' scores within an arm; freedom: its degrees of freedom
    """

    sd: float
    freedom: int
    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    """A difference of means: an arm's minus the baseline's.

    error: standard error over seeds and sentences; freedom: Satterthwaite's degrees of freedom
    low, high: 95% interval; p: two-sided, for no difference, from the same standard error
    visible: approximately the smallest true difference that the test detects with 80% power
    pooled: the interval with pooled variances; permutation: see `permutation_p`
    If the difference is not tested, the other fields are None; if an arm has a single seed, those except `pooled` are.
    """

    difference: float
    error: float | None = None
    freedom: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    visible: float | None = None
    pooled: Pooled | None = None
    permutation: float | None = None


def effect(combination: Sequence[tuple[float, Array]], pool: Pool | None = None) -> Effect:
    """Estimate the sum of sign · mean over arms: (1, arm), (-1, baseline), or four of them for an interaction.

    Each arm is a table of values, (seeds, sentences). All arms are scored on the same sentences. pool: of their setting
    """
    difference = float(sum(sign * values.mean() for sign, values in combination))
    pooled = None
    if pool is not None:
        variance, freedom = two_way_variance(combination, pool)
        reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * math.sqrt(variance)
        pooled = Pooled(math.sqrt(pool.seeds), pool.freedom, difference - reach, difference + reach)
    if any(len(values) < 2 for _, values in combination):
        return Effect(difference, pooled=pooled)
    variance, freedom = two_way_variance(combination)
    error = math.sqrt(variance)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom))
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom)) if error else float(difference == 0)
    visible = (reach + float(stats.t.ppf(POWER, freedom))) * error
    low, high = difference - reach * error, difference + reach * error
    permutation = permutation_p(*(values.mean(axis=1) for _, values in combination)) if len(combination) == 2 else None
    return Effect(difference, error, freedom, low, high, p, visible, pooled, permutation)


def two_way_variance(combination: Sequence[tuple[float, Array]], pool: Pool | None = None) -> tuple[float, float]:
    """Return the variance of a signed sum of means, and its degrees of freedom (Satterthwaite).

    Each arm has its own variances, unless they are pooled.
    """
    sentences = combination[0][1].shape[1]
    contrast = sum(sign * values.mean(axis=0) for sign, values in combination)
    weights = [sign**2 / len(values) for sign, values in combination]
    pools = (
        [(sum(weights), pool)]
        if pool
        else [(weight, Pool.of([values])) for weight, (_, values) in zip(weights, combination, strict=True)]
    )
    # Components with their degrees of freedom.
    seeds = [(weight * one.seeds, one.freedom) for weight, one in pools if one]
    residual = [(weight * one.residual / sentences, one.freedom * (sentences - 1)) for weight, one in pools if one]
    shared = [(float(contrast.var(ddof=1)) / sentences, sentences - 1)] if sentences > 1 else []
    own = sum(part for part, _ in shared) - sum(part for part, _ in residual)
    components = [*seeds, *shared, *residual] if own > 0 else seeds
    variance = sum(part for part, _ in seeds) + max(0.0, own)
    spread = sum(part**2 / free for part, free in components if free)
    return variance, variance**2 / spread if spread else float(sum(free for _, free in seeds))


def permutation_p(first: Array, second: Array) -> float | None:
    """Return the exact two-sided p of a permutation test on the scores of two arms by seed.

    The smallest possible p is 1 / assignments, or 2 / assignments if both arms have as many seeds, because exchanging
    the arms gives the same difference. Return None if this is above 0.05, as for 3 and 3 seeds, or if there are more
    assignments than ASSIGNMENTS.
    """
    count = math.comb(len(first) + len(second), len(first))
    if (2 if len(first) == len(second) else 1) / count > LEVEL or count > ASSIGNMENTS:
        return None
    scores = np.concatenate([first, second])
    scores = scores - scores.mean()  # the difference of means is then proportional to the sum of one arm
    sums = np.abs(scores[np.array(list(combinations(range(len(scores)), len(first))))].sum(axis=1))
    return float((sums >= sums[0] - 1e-9 * np.abs(scores).max()).mean())  # the first assignment is the observed one


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
