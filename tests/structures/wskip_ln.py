"""wskip_ln: y = LN(w ⊙ x + F)."""

from fairseq_resid import connections
from support.formulas import grid, norm

EXAMPLES = grid(wskip_init=[1, 2, -0.5])
LIMITS = [{"wskip_init": -8}]
COEFFICIENTS = {"w"}


def formula(x, f, p, options, place):
    return norm(p["skip_weight"] * x + f, p)


def extra(c, options):
    return c


def weight_sum(site):
    return float(site.skip_weight.detach().abs().max() + 1)


def test_parameters_start_as_documented():
    assert (connections.build("wskip_ln", 4).skip_weight == 1).all()
    assert (connections.build("wskip_ln", 4, wskip_init=2).skip_weight == 2).all()
