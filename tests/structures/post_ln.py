"""post_ln: y = LN(x + F)."""

from support.formulas import norm


def formula(x, f, p, options, place):
    return norm(x + f, p)


def extra(c, options):
    return 0
