"""embedding_shortcut: before each layer, x becomes λx + μx₀, x₀ the normalised embedding; then pre-norm."""

import pytest
import torch

from support.formulas import layer_norm
from support.stacks import C, Stack, branches, by_layer, moved_stack

EXAMPLES = [{"shortcut_start": "neutral"}, {"shortcut_start": "nanochat"}]


def embedding_shortcut(x, layers, weights, embedding_norm, end):
    """Compute a pre-norm stack whose layers start from λ x + μ x₀.

    weights: (λ, μ) of every layer.

    karpathy/nanochat `gpt.py`, `GPT.forward`: the normalised embedding is both x₀ and the first x; the weights apply
    once before each block, before the first one too; a block has two pre-norm sublayers; a norm ends the stack. Its
    RMSNorms are LayerNorms here. Not a part of it: smear, backout and value embeddings.

    Written from the source, independently of the package."""
    x = embedding = layer_norm(x, *embedding_norm)
    for layer, (shortcut_weight, embedding_weight) in zip(layers, weights, strict=True):
        x = shortcut_weight * x + embedding_weight * embedding
        for f, ln_weight, ln_bias in layer:
            x = x + f(layer_norm(x, ln_weight, ln_bias))
    return layer_norm(x, *end)


def first_sites(stack):
    return [site for site in stack.sites if site.place.index % stack.kinds == 0]


def all_weights(stack):
    return [(site.shortcut_weight, site.embedding_weight) for site in first_sites(stack)]


def stack(stack, x):
    norm = stack.sites[0].embedding_norm
    end = (stack.end.weight, stack.end.bias)
    layers = by_layer(stack, branches(stack))
    return embedding_shortcut(x, layers, all_weights(stack), (norm.weight, norm.bias), end)


def extra(c, options):
    return 0  # a site that is not the first of its layer has no weights


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_neutral_start_is_a_pre_norm_stack_on_the_normalised_embedding(kind):
    torch.manual_seed(0)
    depths = {"encoder": 4, "decoder": 3}
    made, plain = Stack("embedding_shortcut", kind, depths), Stack("pre_ln", kind, depths)
    plain.branches.load_state_dict(made.branches.state_dict())
    x = 5 * torch.randn(5, 2, C) + 1
    torch.testing.assert_close(made(x), plain(torch.nn.functional.layer_norm(x, (C,))))
    assert (made(x) - plain(x)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, [(1.15, 0.2)]),
        (2, [(1.15, 0.2), (1.05, 0.05)]),
        (3, [(1.15, 0.2), (1.1, 0.125), (1.05, 0.05)]),
    ],
)
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_start_of_nanochat_falls_with_the_layer(kind, depth, expected):
    """Each stack counts its own layers."""
    made = Stack("embedding_shortcut", kind, {"encoder": 5, "decoder": 7, kind: depth}, shortcut_start="nanochat")
    found = [(shortcut.item(), embedding.item()) for shortcut, embedding in all_weights(made)]
    assert found == [pytest.approx(pair) for pair in expected]


def test_layers_that_read_only_the_embedding_leave_the_last_layer():
    """With λ = 0 and μ = 1, every layer starts from x₀, so that earlier layers have no effect."""
    made = moved_stack("embedding_shortcut", "encoder", 3)
    with torch.no_grad():
        for shortcut_weight, embedding_weight in all_weights(made):
            shortcut_weight.zero_()
            embedding_weight.fill_(1)
    x = torch.randn(5, C, dtype=torch.float64)
    norm = made.sites[0].embedding_norm
    embedding = y = layer_norm(x, norm.weight, norm.bias)
    for f, ln_weight, ln_bias in by_layer(made, branches(made))[-1]:
        y = y + f(layer_norm(y, ln_weight, ln_bias))
    assert (y - embedding).abs().max() > 0.1
    torch.testing.assert_close(made(x), layer_norm(y, made.end.weight, made.end.bias))
