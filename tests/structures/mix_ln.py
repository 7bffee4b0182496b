"""mix_ln: post-norm in the first layers, pre-norm in the rest."""

import math

from support.formulas import grid, norm

EXAMPLES = grid(post_share=[0.25, 1])
VARIANTS = {"all post": {"post_share": 1}}


def is_post(options, place):
    return place.layer < math.ceil(options.post_share * place.depths[place.stack])


def branch_input(x, p, options, place):
    return x if is_post(options, place) else norm(x, p)


def formula(x, f, p, options, place):
    return norm(x + f, p) if is_post(options, place) else x + f


def extra(c, options):
    return 0
