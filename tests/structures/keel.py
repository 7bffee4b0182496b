"""keel: y = LN_out(αx + f(LN_in(x))), where α is the number of sublayers.

In the first layer, α = 1 and the first site has no LN_out.
"""

from support.formulas import norm


def branch_input(x, p, options, place):
    return norm(x, p, "inner_norm")


def formula(x, f, p, options, place):
    y = (1 if place.layer == 0 else place.sites) * x + f
    return y if place.index == 0 else norm(y, p)


def extra(c, options):
    return 2 * c


def weight_sum(site):
    return site.alpha + 1
