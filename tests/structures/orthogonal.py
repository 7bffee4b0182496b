"""orthogonal: y = x + F minus the projection of F onto x."""

import math

import torch

from support.formulas import norm
from support.stacks import inputs, make

COEFFICIENTS = {"α"}


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    products = torch.stack([x * f, x * x]).sum(-1, keepdim=True)
    return x + f - products[0] / (products[1] + 1e-6) * x


def extra(c, options):
    return 0


def weight_sum(site):
    return 2 + (math.sqrt(site.dim) + 1) / 2  # the largest entry of a projection of numbers up to 1


def test_the_update_is_orthogonal_to_the_shortcut():
    x, f = inputs(3, 8)
    update = make("orthogonal", {})(x, f) - x
    assert (update * x).sum(-1).abs().max() < 1e-6
    assert update.norm(dim=-1).le(f.norm(dim=-1)).all()
