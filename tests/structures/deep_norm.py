"""deep_norm: y = LN(αx + F), where α depends on the depths of both stacks."""

import math

import pytest
import torch
from torch import nn

from fairseq_resid import connections
from fairseq_resid.connections.deep_norm import deep_norm_scales
from support.formulas import norm
from support.stacks import places


def formula(x, f, p, options, place):
    n, m = place.depths["encoder"], place.depths["decoder"]
    alpha = (3 * m) ** 0.25 if place.stack == "decoder" else 0.81 * (n**4 * m) ** (1 / 16)
    return norm(alpha * x + f, p)


def extra(c, options):
    return 0


def weight_sum(site):
    return site.alpha + 1


@pytest.mark.parametrize(
    ("stack", "depths", "alpha", "beta"),
    [
        # Wang 2022, table 1, with numbers chosen for this test.
        ("encoder", {"encoder": 6, "decoder": 6}, 0.81 * 6 ** (5 / 16), 0.87 * 6 ** (-5 / 16)),
        ("decoder", {"encoder": 6, "decoder": 6}, 18**0.25, 72**-0.25),
        ("encoder", {"encoder": 24, "decoder": 4}, 0.81 * (24**4 * 4) ** 0.0625, 0.87 * (24**4 * 4) ** -0.0625),
        ("encoder", {"encoder": 12}, 24**0.25, 96**-0.25),
        ("encoder", {"encoder": 12, "decoder": 0}, 24**0.25, 96**-0.25),
        ("decoder", {"decoder": 12}, 24**0.25, 96**-0.25),
    ],
)
def test_scales_match_the_paper(stack, depths, alpha, beta):
    assert deep_norm_scales(places(stack, depths)[0]) == pytest.approx((alpha, beta), rel=1e-12)


def test_parameters_start_as_documented():
    torch.manual_seed(0)
    site = connections.build("deep_norm", places("encoder", {"encoder": 12})[0])
    linears = {name: nn.Linear(400, 200) for name in ("query", "key", "value", "output", "fc1", "fc2")}
    biases = {name: linear.bias.clone() for name, linear in linears.items()}
    site.init_branch(**linears)
    for name, linear in linears.items():
        gain = 1.0 if name in ("query", "key") else 96**-0.25
        assert linear.weight.std().item() == pytest.approx(gain * math.sqrt(2 / 600), rel=0.02)
        assert torch.equal(linear.bias, biases[name])
