"""dlcl: the input of each layer is a learned linear combination of the outputs of all layers so far."""

import pytest
import torch

from support.formulas import layer_norm
from support.stacks import C, Stack, branches, by_layer, moved_stack

EXAMPLES = [{"dlcl_norm": "pre"}, {"dlcl_norm": "post"}]
VARIANTS = {"post": {"dlcl_norm": "post"}}


def run_layer(x, layer, is_pre):
    """Run the sublayers of one layer, each with its own residual connection."""
    for f, weight, bias in layer:
        x = x + f(layer_norm(x, weight, bias)) if is_pre else layer_norm(x + f(x), weight, bias)
    return x


def dlcl(x, layers, weights, norms, end):
    """Compute a stack with a dynamic linear combination of layers.

    weights: w_1 (one number), w_2 (two), ..., w_{L+1}; norms: LN_1 to LN_L; end: the final norm, or None for the
    post-norm form, which has none.

    Wang 2019; `dlcl.py` (and `layer_history.py`, which computes the same) with scalar weights and no window: `push`
    normalises a layer's output in the pre-norm form only, `pop` normalises the sum in the post-norm form only, and
    neither normalises the embedding, the first value. The first layer reads w_1 times the embedding.

    Written from the source, independently of the package."""
    is_pre = end is not None
    history = [x]
    for number, layer in enumerate(layers):
        read = combination(history, weights[number])
        if not is_pre and number > 0:
            read = layer_norm(read, *norms[number - 1])
        output = run_layer(read, layer, is_pre)
        history = [*history, layer_norm(output, *norms[number]) if is_pre else output]
    read = combination(history, weights[-1])
    return layer_norm(read, *(norms[-1] if end is None else end))


def combination(history, weights):
    assert weights.shape == (len(history),)
    total = weights[0] * history[0]
    for weight, value in zip(weights[1:], history[1:], strict=True):
        total = total + weight * value
    return total


def all_weights(stack):
    """Return w_1, which the first site has, and the weights of the last site of every layer."""
    return [stack.sites[0].input_weight.view(1), *(site.layer_weights for site in last_sites(stack))]


def last_sites(stack):
    return [site for site in stack.sites if site.place.last]


def stack(stack, x):
    is_pre, end = stack.options.dlcl_norm == "pre", (stack.end.weight, stack.end.bias)
    found = [site.output_norm if is_pre else site.combination_norm for site in last_sites(stack)]
    norms = [(norm.weight, norm.bias) for norm in found if norm is not None]
    if not is_pre:
        norms = [*norms, end]  # in the post-norm form, LN_L ends the stack
    assert len(norms) == len(stack.sites) // stack.kinds
    return dlcl(x, by_layer(stack, branches(stack)), all_weights(stack), norms, end if is_pre else None)


def extra(c, options):
    # The weights of y_0, y_1 and y_2, and LN_2. In the post-norm form, LN_2 is the norm at the end of the stack.
    return 3 + (2 * c if options.dlcl_norm == "pre" else 0)


def state(site, x):
    return torch.cat([x] * site.position, -1)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_starts_with_means(norm):
    """At the start, a layer reads the mean of the history, in which only the embedding is not normalised."""
    torch.manual_seed(0)
    made, x = Stack("dlcl", "encoder", {"encoder": 3}, dlcl_norm=norm).double(), torch.randn(5, C).double() * 7 + 2
    history, one, zero = [x], torch.ones(C).double(), torch.zeros(C).double()

    def read():
        mean = torch.stack(history).mean(0)
        return mean if norm == "pre" or len(history) == 1 else layer_norm(mean, one, zero)

    for layer in by_layer(made, branches(made)):
        y = run_layer(read(), layer, norm == "pre")
        history.append(layer_norm(y, one, zero) if norm == "pre" else y)
    expected = layer_norm(read(), one, zero) if norm == "pre" else read()
    torch.testing.assert_close(made(x), expected, rtol=1e-6, atol=1e-6)  # the stack starts with fp32 weights
    assert [w.tolist() for w in all_weights(made)] == [pytest.approx([1 / n] * n) for n in (1, 2, 3, 4)]


def test_coefficients_are_the_weights():
    made = moved_stack("dlcl", "encoder", 2)
    found = [site.coefficients(torch.empty(0), torch.empty(0)) for site in made.sites]
    first, second, last = all_weights(made)
    expected = [{"w_in": first.squeeze()}, {"w": second}, {}, {"w": last}]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("norm", "plain", "depth"), [("pre", "pre_ln", 1), ("post", "post_ln", 3)])
def test_weights_on_the_last_layer_give_a_plain_stack(norm, plain, depth):
    """With 1 for the last output and 0 for the others, all that remains is LN of a LayerNorm's output: the same again.

    A deeper pre-norm stack differs, because LN_k is on its shortcut."""
    torch.manual_seed(0)
    depths = {"encoder": 4, "decoder": depth}
    made, plain = Stack("dlcl", "decoder", depths, dlcl_norm=norm), Stack(plain, "decoder", depths)
    plain.branches.load_state_dict(made.branches.state_dict())
    with torch.no_grad():
        for weights in all_weights(made):
            weights.zero_()[-1] = 1
    x = torch.randn(5, 2, C)
    torch.testing.assert_close(made(x), plain(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_parameters_are_a_triangle_of_weights_and_a_norm_per_layer(norm):
    depth = 3
    made = Stack("dlcl", "decoder", {"encoder": 2, "decoder": depth}, dlcl_norm=norm)
    sublayers = sum(p.numel() for site in made.sites for p in site.norm.parameters())
    triangle = (depth + 1) * (depth + 2) // 2
    norms = depth + 1 if norm == "pre" else depth
    found = sum(p.numel() for module in (made.sites, made.end) for p in module.parameters())
    assert found == sublayers + triangle + norms * 2 * C
