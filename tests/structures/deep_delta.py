"""deep_delta: the component of x in the direction of F moves towards a predicted value."""

import math

import pytest
import torch

from fairseq_resid import connections
from support.formulas import norm
from support.stacks import inputs, make

COEFFICIENTS = {"β", "v"}
HAS_GATE = True


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    beta = 2 * torch.sigmoid(norm(x, p) @ p["gate_weight"][0] + p["gate_bias"][0])
    value = 4 * torch.sigmoid(x @ p["value_weight"][0] + p["value_bias"][0])
    k = f / ((f * f).sum(-1, keepdim=True) + 1e-10).sqrt()
    return x + (beta * (value - torch.einsum("...c,...c->...", k, x))).unsqueeze(-1) * k


def extra(c, options):
    return 2 * c + 2


def weight_sum(site):
    largest = 2 + math.sqrt(site.dim)  # 1 plus the largest entry of 2 (k·x) k, for numbers up to 1
    # In the backward pass, the norm of a row of equal numbers multiplies the square of x by 1e7.
    return largest if site.gate_bias.dtype == torch.float16 else 1e4 * largest


def test_beta_of_1_writes_the_value():
    site = make("deep_delta", {})
    site.gate_weight.data.zero_(), site.gate_bias.data.zero_()
    x, f = inputs(3, 8)
    y, k = site(x, f), f / f.norm(dim=-1, keepdim=True)
    torch.testing.assert_close((y * k).sum(-1, keepdim=True), site.value(x))
    torch.testing.assert_close(y - (y * k).sum(-1, keepdim=True) * k, x - (x * k).sum(-1, keepdim=True) * k)


def test_parameters_start_as_documented():
    torch.manual_seed(3)
    site = connections.build("deep_delta", 4096)
    for weight in (site.gate_weight, site.value_weight):
        assert weight.std().item() == pytest.approx(0.5 / 64, rel=0.1)
    assert site.gate_bias == 0 and site.value_bias == 0
