"""gpas: y = s - SiLU(g) sg(s), where s = x + F, sg stops the gradient, and each layer has one g."""

import torch

from support.formulas import norm
from support.stacks import inputs, make

COEFFICIENTS = {"scale"}
STOPS_GRADIENT = True


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    gate = p["scaling_gate"] / (1 + torch.exp(-p["scaling_gate"]))
    return x + f - gate * (x + f).detach()


def extra(c, options):
    return 1


def test_values_are_scaled_but_not_gradients():
    site = make("gpas", {})
    site.scaling_gate.data.fill_(1.0)
    x, f = (value.requires_grad_() for value in inputs(3, 8))
    y = site(x, f)
    torch.testing.assert_close(y, (1 - torch.tensor(1.0).sigmoid()).double() * (x + f))
    assert all((gradient == 1).all() for gradient in torch.autograd.grad(y.sum(), [x, f]))
