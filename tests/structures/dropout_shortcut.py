"""dropout_shortcut: y = dropout(x, 0.5) + F in training, y = x + F in evaluation."""

import pytest

from support.formulas import grid, optional_norm
from support.stacks import C, inputs, make

EXAMPLES = grid(residual_norm=["none", "layer"])
VARIANTS = {"layer": {"residual_norm": "layer"}}
DEEP = {"residual_norm": "layer"}
IS_RANDOM = True


def formula(x, f, p, options, place):
    return optional_norm(x + f, p, options)


def extra(c, options):
    return 0 if options.residual_norm == "layer" else -2 * c


def test_half_of_the_shortcut_is_dropped():
    site = make("dropout_shortcut", {}).train()
    x, f = inputs(50, 40, C)
    kept = (site(x, f) - f) / x
    zero, double = kept.abs() < 1e-6, (kept - 2).abs() < 1e-6
    assert (zero | double).all()
    assert zero.double().mean().item() == pytest.approx(0.5, abs=0.02)
