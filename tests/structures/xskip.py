"""xskip: y = λx + μF."""

import pytest
import torch

from fairseq_resid import connections
from support.formulas import grid
from support.stacks import C

EXAMPLES = grid(skip_lambda=[0.5, 1, 2, 3], branch_scale=[0.5, 1, 2])
DEEP = None


def formula(x, f, p, options, place):
    return options.skip_lambda * x + options.branch_scale * f


def extra(c, options):
    return -2 * c


def weight_sum(site):
    return site.options.skip_lambda + site.options.branch_scale


def test_dropout_is_a_probability():
    site = connections.build("xskip", C, 0.25)
    zeros = torch.zeros(200, C)
    y = site(zeros, torch.ones(200, C))
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert torch.equal(site.eval()(zeros, zeros + 1), zeros + 1)


@pytest.mark.parametrize(("factor", "is_finite"), [(3.0, True), (4.0, False)])
def test_deep_stack_overflows_only_with_a_large_lambda(factor, is_finite):
    """The shortcut is multiplied by λ at each of the 72 sites of a 24-layer decoder: 3^72 is below fp32's limit."""
    site = connections.build("xskip", 4, skip_lambda=factor)
    x = torch.ones(1, 4)
    for _ in range(72):
        x = site(x, torch.zeros(1, 4))
    assert bool(x.isfinite().all()) == is_finite
