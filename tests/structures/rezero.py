"""rezero: y = x + aF, with one a per layer."""

COEFFICIENTS = {"a"}


def formula(x, f, p, options, place):
    return x + p["branch_scalar"] * f


def extra(c, options):
    return 1 - 2 * c
