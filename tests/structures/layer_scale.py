"""layer_scale: y = x + s ⊙ f(LN(x))."""

import pytest

from fairseq_resid import connections
from support.formulas import norm
from support.stacks import places

COEFFICIENTS = {"s"}


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    return x + p["branch_weight"] * f


def extra(c, options):
    return c


@pytest.mark.parametrize(("layers", "start"), [(18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_parameters_start_as_documented(layers, start):
    site = connections.build("layer_scale", places("encoder", {"encoder": layers, "decoder": 1})[0])
    assert (site.branch_weight == start).all()
