"""pre_ln: y = x + f(LN(x))."""

from support.formulas import norm


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    return x + f


def extra(c, options):
    return 0
