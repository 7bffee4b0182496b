"""dlcl: pre-norm or post-norm layers; every layer begins with a weighted sum of the outputs of all layers so far."""

from typing import Any

import pytest
import torch

from support.formulas import layer_norm
from support.stacks import C, Stack, branches, by_layer, parameters

VARIANTS = {"post": {"dlcl_norm": "post"}}


def dlcl(x, layers, weights, norms, is_pre):
    """Compute a stack with dynamic linear combinations of layers.

    weights: rows of a lower triangle, one before every layer and one at the end of the stack
    norms: weight and bias of LN_1 .. LN_L, and with pre-norm also of the norm that ends the stack

    Wang 2019; `layer_history.py`, LearnableDenseLayerHistory, and `simple_dlcl_transformer.py`."""
    history = [x]
    for number, layer in enumerate([*layers, None]):
        row = weights[number]
        assert row.shape == (len(history),)
        x = sum(scalar * value for scalar, value in zip(row, history, strict=True))
        if number and not is_pre:
            x = layer_norm(x, *norms[number - 1])
        if layer is None:
            return layer_norm(x, *norms[-1]) if is_pre else x
        for f, *norm in layer:
            x = x + f(layer_norm(x, *norm)) if is_pre else layer_norm(x + f(x), *norm)
        history = [*history, layer_norm(x, *norms[number]) if is_pre else x]
    return None


def stack(stack, x):
    is_pre = stack.options.dlcl_norm == "pre"
    owners = [parameters(site) for site in stack.sites if site.place.last]
    weights = [stack.sites[0].input_weight.unsqueeze(0), *(p["layer_weights"] for p in owners)]
    name = "output_norm" if is_pre else "combination_norm"
    norms = [(p[f"{name}.weight"], p[f"{name}.bias"]) for p in owners if f"{name}.weight" in p]
    norms = [*norms, (stack.end.weight, stack.end.bias)]
    assert len(norms) == len(owners) + is_pre
    return dlcl(x, by_layer(stack, branches(stack)), weights, norms, is_pre)


def extra(c, options):
    # This is the last site of the stack, so the norm of its combination is in the stream.
    return 3 + (2 * c if options.dlcl_norm == "pre" else 0)


def state(site, x):
    return torch.cat([x] * site.position, -1)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_weights_start_as_a_mean(norm):
    options: dict[str, Any] = {"dlcl_norm": norm}
    made = Stack("dlcl", "encoder", {"encoder": 3}, **options)
    rows = [site.coefficients(torch.empty(0), torch.empty(0)) for site in made.sites]
    found = [{name: value.tolist() for name, value in row.items()} for row in rows]
    thirds = [pytest.approx(1 / 3)] * 3
    assert found == [{"w_in": 1}, {"w": [0.5, 0.5]}, {}, {"w": thirds}, {}, {"w": [0.25] * 4}]


@pytest.mark.parametrize(("norm", "plain"), [("pre", "pre_ln"), ("post", "post_ln")])
def test_one_layer_with_weights_for_its_output_is_plain(norm, plain):
    """With w = (0, 1) and the norm that the plain stack lacks undone, a single layer is one of pre_ln or post_ln."""
    torch.manual_seed(0)
    made, x = Stack("dlcl", "encoder", {"encoder": 1}, dlcl_norm=norm), torch.randn(5, C)
    other = Stack(plain, "encoder", {"encoder": 1})
    other.branches.load_state_dict(made.branches.state_dict())
    with torch.no_grad():
        made.sites[-1].layer_weights.copy_(torch.tensor([0.0, 1.0]))
    expected = other(x)
    torch.testing.assert_close(made(x), torch.nn.functional.layer_norm(expected, (C,)), rtol=1e-4, atol=1e-4)
