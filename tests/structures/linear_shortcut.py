"""linear_shortcut: y = xW + b + F."""

import torch

from fairseq_resid import connections
from support.formulas import assert_xavier_uniform, grid, largest_row, optional_norm

EXAMPLES = grid(residual_norm=["none", "layer"])
VARIANTS = {"layer": {"residual_norm": "layer"}}
DEEP = {"residual_norm": "layer"}


def formula(x, f, p, options, place):
    return optional_norm(x @ p["shortcut_weight"].T + p["shortcut_bias"] + f, p, options)


def extra(c, options):
    return c * c + c - (0 if options.residual_norm == "layer" else 2 * c)


def weight_sum(site):
    return max(2.0, largest_row(site) + 1)


def test_parameters_start_as_documented():
    torch.manual_seed(3)
    linear = connections.build("linear_shortcut", 48)
    assert_xavier_uniform(linear.shortcut_weight.detach(), 48, 48)
    assert not linear.shortcut_bias.any()
