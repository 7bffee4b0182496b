"""dense_former: pre-norm; after each layer, the state is a weighted sum of the outputs of all layers so far."""

import torch

from support.formulas import layer_norm
from support.stacks import C, Stack, branches, by_layer


def dense_former(x, layers, weights, end):
    """Compute a DenseFormer stack.

    After each pre-LN layer, the state becomes a weighted sum of the embedding and of the outputs of all layers so far,
    as they were before averaging. The stack ends with a norm.

    Pagliardini 2024; `denseformer.py`, dilation 1, period 1.

    Written from the source, independently of the package."""
    outputs = [x]
    for layer, weight in zip(layers, weights, strict=True):
        for f, ln_weight, ln_bias in layer:
            x = x + f(layer_norm(x, ln_weight, ln_bias))
        outputs = [*outputs, x]
        assert weight.shape == (len(outputs),)
        x = weight[0] * outputs[0]
        for scalar, output in zip(weight[1:], outputs[1:], strict=True):
            x = x + scalar * output
    return layer_norm(x, end[0], end[1])


def stack(stack, x):
    weights = [site.layer_weights for site in stack.sites if site.layer_weights is not None]
    return dense_former(x, by_layer(stack, branches(stack)), weights, (stack.end.weight, stack.end.bias))


def extra(c, options):
    return 3  # X_0, X_1 and X_2


def state(site, x):
    return torch.cat([x] * site.position, -1)


def test_a_stack_starts_as_a_pre_norm_stack():
    torch.manual_seed(0)
    made, x = Stack("dense_former", "encoder", {"encoder": 3}), torch.randn(5, C)
    plain = Stack("pre_ln", "encoder", {"encoder": 3})
    plain.branches.load_state_dict(made.branches.state_dict())
    torch.testing.assert_close(made(x), plain(x))
