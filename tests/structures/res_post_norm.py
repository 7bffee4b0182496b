"""res_post_norm: y = x + LN(F)."""

from support.formulas import norm


def formula(x, f, p, options, place):
    return x + norm(f, p)


def extra(c, options):
    return 0
