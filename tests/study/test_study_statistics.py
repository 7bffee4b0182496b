"""Statistics of studies: effects, intervals, power, BLEU per sentence, Holm's correction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fairseq_resid.scoring import translation_scores
from fairseq_resid.study import statistics

pytestmark = pytest.mark.once


def table(values: list[float], sentences: int = 50, noise: float = 0.0) -> np.ndarray:
    """Return an arm whose seeds have these mean scores. All seeds share the same noise over sentences."""
    shape = np.random.default_rng(3).normal(0, noise, sentences)
    return np.array(values)[:, None] + shape - shape.mean()


def test_effect_equals_welch_test_without_sentence_noise() -> None:
    ours, theirs = [2.0, 2.3, 2.2, 2.6], [2.5, 2.7, 3.1]
    found = statistics.effect([(1.0, table(ours, noise=0.5)), (-1.0, table(theirs, noise=0.5))])
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue) and found.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_effect_equals_paired_test_without_seed_noise() -> None:
    flat, shaped = table([2.0, 2.0]), table([3.0, 3.0, 3.0], noise=0.5)
    found = statistics.effect([(1.0, shaped), (-1.0, flat)])
    test = stats.ttest_rel(shaped.mean(axis=0), flat.mean(axis=0))
    assert found.p == pytest.approx(test.pvalue) and found.freedom == pytest.approx(49)
    assert (found.low, found.high) == pytest.approx(test.confidence_interval(0.95))


def test_variance_of_a_difference_is_unbiased() -> None:
    """The mean estimate equals the true variance if seeds, sentences and their interaction all add noise."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(4000):
        shared = generator.normal(0, 3, 30)
        arms = [
            shared
            + generator.normal(0, own, 30)
            + generator.normal(0, seed, (count, 1))
            + generator.normal(0, 1.5, (count, 30))
            for count, seed, own in ((3, 0.3, 0.0), (5, 0.6, 2.0))
        ]
        variance, _ = statistics.two_way_variance([(1.0, arms[0]), (-1.0, arms[1])])
        found.append((variance, arms[0].mean() - arms[1].mean()))
    truth = 0.3**2 / 3 + 0.6**2 / 5 + 2**2 / 30 + 1.5**2 / (3 * 30) + 1.5**2 / (5 * 30)
    estimates, differences = np.array(found).T
    assert differences.var() == pytest.approx(truth, rel=0.05)
    assert estimates.mean() == pytest.approx(truth, rel=0.03)


def text_like(generator: Any, seeds: tuple[int, int], spread: tuple[float, float]) -> list[np.ndarray]:
    """Return NLLs of 3,532 sentences. Most variance is between sentences, and their interaction with seeds is small."""
    shared = generator.normal(0, 0.75, 3532)
    both = (shared + generator.normal(0, 0.15, 3532) - 0.3, shared)
    return [
        each + generator.normal(0, sd, (count, 1)) + generator.normal(0, 0.25, (count, 3532))
        for each, count, sd in zip(both, seeds, spread, strict=True)
    ]


def image_like(generator: Any, seeds: tuple[int, int], spread: tuple[float, float]) -> list[np.ndarray]:
    """Return errors of 10,000 images, 0 or 100. Different seeds misclassify different images."""
    hard = generator.normal(-1.6, 2.2, 10_000)
    return [
        100.0 * (generator.logistic(size=(count, 10_000)) < hard + shift + generator.normal(0, sd, (count, 1)))
        for shift, count, sd in zip((-0.1, 0.0), seeds, spread, strict=True)
    ]


def image_truth(spread: tuple[float, float]) -> float:
    """Return the true difference of `image_like` over all images and seeds."""
    at, weights = np.polynomial.hermite_e.hermegauss(80)
    means = [
        float((weights / weights.sum() * 100 / (1 + np.exp(1.6 - shift - math.hypot(2.2, sd) * at))).sum())
        for shift, sd in zip((-0.1, 0.0), spread, strict=True)
    ]
    return means[0] - means[1]


@pytest.mark.parametrize(
    ("draw", "seeds", "spread"),
    [
        (text_like, (3, 3), (0.005, 0.005)),
        (text_like, (3, 6), (0.011, 0.092)),
        (image_like, (3, 3), (0.0, 0.0)),
        (image_like, (3, 6), (0.05, 0.02)),
        (image_like, (4, 4), (0.1, 0.1)),
    ],
)
def test_intervals_have_nominal_coverage(draw: Any, seeds: tuple[int, int], spread: tuple[float, float]) -> None:
    """Of the 95% intervals, each from new seeds and new items, 92.5% to 97.5% contain the true difference."""
    generator = np.random.default_rng(1)
    truth = -0.3 if draw is text_like else image_truth(spread)
    held = 0
    for _ in range(600):
        arms = draw(generator, seeds, spread)
        found = statistics.effect([(1.0, arms[0]), (-1.0, arms[1])])
        assert found.low is not None and found.high is not None and found.p is not None
        held += found.low < truth < found.high
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)  # p and interval must agree
    assert 0.925 <= held / 600 <= 0.975


@pytest.mark.parametrize(("count", "visible"), [(3, 0.91), (6, 0.54), (10, 0.40)])
def test_smallest_detectable_effect_matches_known_values(count: int, visible: float) -> None:
    spread = np.linspace(-1, 1, count)
    values = list(5 + 0.3 * spread / spread.std(ddof=1))
    found = statistics.effect([(1.0, table(values)), (-1.0, table(values))])
    assert found.visible == pytest.approx(visible, abs=0.006)


def test_smallest_detectable_effect_has_80_percent_power() -> None:
    """At the 5% level, 80% of studies detect an effect of this size."""
    generator = np.random.default_rng(0)
    error = math.sqrt(2 / 5)
    effect = error * (stats.t.ppf(0.975, 8) + stats.t.ppf(0.8, 8))
    first, second = generator.normal(effect, 1, (4000, 5)), generator.normal(0, 1, (4000, 5))
    found = stats.ttest_ind(first, second, axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_one_seed_gives_no_p_value() -> None:
    found = statistics.effect([(1.0, table([2.0])), (-1.0, table([3.0]))])
    assert found == statistics.Effect(pytest.approx(-1))


def test_interaction_is_a_difference_of_differences() -> None:
    groups = [table([2.0, 2.2]), table([3.0, 3.2]), table([2.5, 2.6]), table([2.9, 3.0])]
    found = statistics.effect(list(zip((1.0, -1.0, -1.0, 1.0), groups, strict=True)))
    assert found.difference == pytest.approx((2.1 - 3.1) - (2.55 - 2.95))
    assert found.error == pytest.approx(math.sqrt((0.02 + 0.02 + 0.005 + 0.005) / 2))


def test_pseudo_values_of_a_mean_equal_the_values() -> None:
    parts = np.array([[100.0, 1.0], [0.0, 1.0], [0.0, 1.0], [100.0, 1.0]])
    assert statistics.pseudo_values(parts, lambda summed: summed[0] / summed[1]) == pytest.approx(parts[:, 0])


def test_pseudo_values_have_bootstrap_spread_of_bleu() -> None:
    """The standard error of pseudo-values equals that of a bootstrap over sentences, and their mean equals BLEU."""
    generator = np.random.default_rng(2)
    length = generator.integers(6, 20, 300)
    totals = [np.maximum(length - order, 0) for order in range(4)]
    rates = generator.beta(4, 4, 300)
    matched = [generator.binomial(total, rates ** (order + 1)) for order, total in enumerate(totals)]
    parts = np.stack([length, length + generator.integers(-1, 3, 300), *matched, *totals], axis=1).astype(float)
    values = statistics.pseudo_values(parts, translation_scores.bleu_of)
    assert values.mean() == pytest.approx(translation_scores.bleu_of(parts.sum(axis=0)))
    drawn = [translation_scores.bleu_of(parts[generator.integers(300, size=300)].sum(axis=0)) for _ in range(500)]
    assert values.std(ddof=1) / math.sqrt(300) == pytest.approx(np.std(drawn), rel=0.1)


def test_holm_correction_matches_known_values() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0] and statistics.holm([]) == []


def test_bleu_from_summed_statistics_equals_bleu() -> None:
    hypotheses = ["the cat sat on the mat .", "a dog runs fast today", "hello there my friend"]
    references = ["the cat sat on a mat .", "a dog runs very fast today", "hello there , my friend"]
    summed = np.array(translation_scores.statistics(hypotheses, references)).sum(axis=0)
    assert translation_scores.bleu_of(summed) == pytest.approx(translation_scores.bleu(hypotheses, references).score)
