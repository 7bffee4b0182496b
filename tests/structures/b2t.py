"""b2t: post-norm; the last norm of a layer also sees the input to the layer."""

import torch
from torch import nn

from fairseq_resid import connections
from support.formulas import layer_norm, norm
from support.stacks import branches, by_layer, places


def formula(x, f, p, options, place):
    """The site is the last and only one of its layer, so its state is the input to the layer."""
    return norm(x + f + x, p)


def b2t(x, layers):
    """Compute a stack with B2T: post-LN, and the input to a layer is added again before its last norm.

    The stack has no final norm. Takase 2022; b2t_connection `transformer_layer.py`.

    Written from the source, independently of the package."""
    for layer in layers:
        bottom = x
        for number, (f, ln_weight, ln_bias) in enumerate(layer, start=1):
            total = x + f(x)
            if number == len(layer):
                total = bottom + total
            x = layer_norm(total, ln_weight, ln_bias)
    return x


def stack(stack, x):
    return b2t(x, by_layer(stack, branches(stack)))


def extra(c, options):
    return 0


def weight_sum(site):
    return 3.0


def test_parameters_start_as_documented():
    torch.manual_seed(0)
    site = connections.build("b2t", places("encoder", {"encoder": 9, "decoder": 1})[0])
    linears = {name: nn.Linear(4, 4) for name in ("query", "key", "value", "output")}
    before = {name: (linear.weight.clone(), linear.bias.clone()) for name, linear in linears.items()}
    site.init_branch(**linears)
    for name, (weight, bias) in before.items():
        torch.testing.assert_close(linears[name].weight, weight / 3)
        assert torch.equal(linears[name].bias, bias)
