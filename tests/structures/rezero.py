"""rezero: y = x + aF, one a for a layer."""

COEFFICIENTS = {"a"}


def formula(x, f, p, options, place):
    return x + p["branch_scalar"] * f


def extra(c, options):
    return 1 - 2 * c
