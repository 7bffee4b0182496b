"""Significance tests and confidence intervals of all kinds of task: over sentences, images or seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.text.bleu import metric

LEVEL = 0.95
RESAMPLES, SEED = 1000, 12345


@dataclass(frozen=True)
class Paired:
    """Two models compared on the same examples: the difference, its 95% interval, and p."""

    difference: float
    low: float
    high: float
    p: float


def bootstrap(mine: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Compare the means of two models with a paired bootstrap over examples.

    p is computed as in sacrebleu: how often a resampled difference is at least as far from the observed one as the
    observed one is from 0.
    """
    apart = np.asarray(mine, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    observed = float(apart.mean())
    if not apart.any():
        return Paired(0.0, 0.0, 0.0, 1.0)
    generator = np.random.default_rng(SEED)
    resampled = np.array([apart[generator.integers(0, len(apart), len(apart))].mean() for _ in range(RESAMPLES)])
    low, high = np.percentile(resampled, [2.5, 97.5])
    p = (1 + np.count_nonzero(np.abs(resampled - observed) >= abs(observed))) / (RESAMPLES + 1)
    return Paired(observed, float(low), float(high), float(p))


def mcnemar(mine: Sequence[bool], baseline: Sequence[bool]) -> Paired:
    """Compare the error rates of two models, in percent, with the exact McNemar test and Wald's paired interval.

    mine, baseline: whether each prediction is wrong
    """
    from scipy.stats import binomtest, norm

    worse = sum(one and not other for one, other in zip(mine, baseline, strict=True))
    better = sum(other and not one for one, other in zip(mine, baseline, strict=True))
    size, apart = len(mine), worse - better
    half = float(norm.ppf((1 + LEVEL) / 2)) * math.sqrt(max(worse + better - apart**2 / size, 0.0)) / size
    p = float(binomtest(worse, worse + better).pvalue) if worse + better else 1.0
    return Paired(100 * apart / size, 100 * (apart / size - half), 100 * (apart / size + half), p)


def wilson(wrong: Sequence[bool]) -> tuple[float, float]:
    """Return the 95% confidence interval (Wilson) of an error rate, in percent. wrong: as in `mcnemar`"""
    from scipy.stats import binomtest

    between = binomtest(sum(wrong), len(wrong)).proportion_ci(LEVEL, method="wilson")
    return 100 * between.low, 100 * between.high


def over_runs(errors: Sequence[float]) -> str:
    """Return the mean, standard deviation and median of the runs, and the 95% interval of the mean, on one line.

    The interval is based on Student's t.
    """
    from scipy.stats import t

    mean, middle = statistics.fmean(errors), statistics.median(errors)
    if len(errors) < 2:
        return f"{mean:.2f}%"
    sd = statistics.stdev(errors)
    half = float(t.ppf((1 + LEVEL) / 2, len(errors) - 1)) * sd / math.sqrt(len(errors))
    return f"mean {mean:.2f} ± {sd:.2f}%, 95% interval {mean - half:.2f} to {mean + half:.2f}, median {middle:.2f}%"


def bleu_tests(
    systems: Sequence[Sequence[str]], references: Sequence[str], tokenize: str
) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Test the BLEU of systems against the first one, with sacrebleu's paired bootstrap and approximate randomisation.

    systems: hypotheses of each
    Returns: sacrebleu's results of both tests for every system, and the signatures of the tests.
    """
    from sacrebleu.significance import PairedTest

    named = [(str(number), texts) for number, texts in enumerate(systems)]
    tests = [PairedTest(named, {"BLEU": metric(tokenize)}, [references], test_type=kind)() for kind in ("bs", "ar")]
    signatures = [f"BLEU {signature['BLEU'].format()}" for signature, _ in tests]
    return list(zip(*(scores["BLEU"] for _, scores in tests), strict=True)), signatures
