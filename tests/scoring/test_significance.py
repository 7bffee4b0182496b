"""Paired tests and intervals of scores over examples, compared with known values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairseq_resid.scoring import images, significance

pytestmark = pytest.mark.once


def test_mcnemar_and_intervals_match_known_values() -> None:
    baseline = [images.Answer(0, int(number < 30), 0.0) for number in range(100)]
    mine = [images.Answer(0, int(10 <= number < 32), 0.0) for number in range(100)]
    found = significance.mcnemar(images.wrong(mine), images.wrong(baseline))
    assert found.difference == pytest.approx(-8)
    # On 2 images only the first model is wrong, and on 10 only the second, so p is two-sided for 12 fair coin flips.
    assert found.p == pytest.approx(2 * sum(math.comb(12, k) for k in range(3)) / 2**12)
    assert found.low < -8 < found.high < 0
    low, high = significance.wilson(images.wrong(baseline))
    assert low == pytest.approx(21.895, abs=1e-2) and high == pytest.approx(39.583, abs=1e-2)  # Wilson, by hand
    assert significance.over_runs([1.0, 2.0, 3.0]) == "mean 2.00 ± 1.00%, 95% interval -0.48 to 4.48, median 2.00%"


def test_bootstrap_is_paired_over_images() -> None:
    generator = np.random.default_rng(1)
    hard = generator.normal(80, 40, 500)  # how hard an image is, for both models
    better = hard + generator.normal(3, 5, 500)
    found = significance.bootstrap(better.tolist(), hard.tolist())
    assert found.low < found.difference < found.high and found.low > 2 and found.p == pytest.approx(1 / 1001)
    assert found.difference == pytest.approx((better - hard).mean())
    half = 1.96 * (better - hard).std() / 500**0.5
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    noise = significance.bootstrap((hard + generator.normal(0, 5, 500)).tolist(), hard.tolist())
    assert noise.p > 0.05 and significance.bootstrap(hard.tolist(), hard.tolist()).p == 1
    own = significance.bootstrap(hard.tolist(), [0.0] * len(hard))
    assert own.low < hard.mean() < own.high
