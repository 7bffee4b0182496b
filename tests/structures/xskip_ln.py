"""xskip_ln: y = LN(λx + μF)."""

from structures.xskip import weight_sum  # noqa: F401
from support.formulas import grid, norm

EXAMPLES = grid(skip_lambda=[1, 2, 3], branch_scale=[1, 2, 3])
LIMITS = [{"skip_lambda": 8, "branch_scale": 3}]


def formula(x, f, p, options, place):
    return norm(options.skip_lambda * x + options.branch_scale * f, p)


def extra(c, options):
    return 0
