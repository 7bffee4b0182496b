"""embedding_shortcut: before each layer, x becomes λx + μx₀, x₀ the normalised embedding; then pre-norm."""

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.connections import Place
from support.formulas import layer_norm, norm, rms_norm
from support.stacks import C, Stack, branches, by_layer, moved_stack, parameters

EXAMPLES = [{"shortcut_start": "neutral"}, {"shortcut_start": "nanochat"}]


def normalised(x):
    return rms_norm(x, torch.ones(x.size(-1), dtype=x.dtype))


def embedding_shortcut(x, layers, weights, end):
    """Compute a pre-norm stack whose layers start from λ x + μ x₀.

    weights: (λ, μ) of every layer.

    karpathy/nanochat `gpt.py`, `GPT.forward`: the embedding, after an RMSNorm without parameters, is both x₀ and the
    first x; the weights apply once before each block, before the first one too; a block has two pre-norm sublayers; a
    norm ends the stack. The other norms are LayerNorms here. Not a part of it: smear, backout and value embeddings.

    Written from the source, independently of the package."""
    x = embedding = normalised(x)
    for layer, (shortcut_weight, embedding_weight) in zip(layers, weights, strict=True):
        x = shortcut_weight * x + embedding_weight * embedding
        for f, ln_weight, ln_bias in layer:
            x = x + f(layer_norm(x, ln_weight, ln_bias))
    return layer_norm(x, *end)


def all_weights(stack):
    first = [sites[0] for sites in by_layer(stack, list(stack.sites))]
    return [(site.shortcut_scalar, site.embedding_scalar) for site in first]


def stack(stack, x):
    end = (stack.end.weight, stack.end.bias)
    return embedding_shortcut(x, by_layer(stack, branches(stack)), all_weights(stack), end)


def extra(c, options):
    return 0  # a site that is not the first of its layer has no weights


def weight_sum(site):
    return max(2.0, 1 + sum(abs(weight.item()) for weight in site.coefficients(None, None).values()))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_only_the_first_site_of_a_layer_has_weights(kind):
    made = moved_stack("embedding_shortcut", kind)
    for index, site in enumerate(made.sites):
        weights = {key: p for key, p in parameters(site).items() if not key.startswith("norm.")}
        assert list(weights) == ([] if index % made.kinds else ["shortcut_scalar", "embedding_scalar"])
        found = site.coefficients(torch.zeros(2 * C), torch.zeros(C))
        assert dict(zip(("lambda", "mu"), weights.values(), strict=False)) == found


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_neutral_start_is_a_pre_norm_stack_on_the_normalised_embedding(kind):
    torch.manual_seed(0)
    depths = {"encoder": 4, "decoder": 3}
    made, plain = Stack("embedding_shortcut", kind, depths), Stack("pre_ln", kind, depths)
    plain.branches.load_state_dict(made.branches.state_dict())
    x = 5 * torch.randn(5, 2, C) + 1
    torch.testing.assert_close(made(x), plain(normalised(x)))
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
    embedding = y = normalised(x)
    for f, ln_weight, ln_bias in by_layer(made, branches(made))[-1]:
        y = y + f(layer_norm(y, ln_weight, ln_bias))
    assert (y - embedding).abs().max() > 0.1
    torch.testing.assert_close(made(x), layer_norm(y, made.end.weight, made.end.bias))


def test_state_keeps_the_embedding():
    site = connections.build("embedding_shortcut", Place(C, last=False, sites=2, depths={"encoder": 1})).double()
    with torch.no_grad():
        site.shortcut_scalar.fill_(0.5)
        site.embedding_scalar.fill_(3.0)
    x, embedding, f = (torch.randn(3, C, dtype=torch.float64) for _ in range(3))
    state = torch.cat([x, embedding], dim=-1)
    torch.testing.assert_close(site.enter(x), torch.cat([normalised(x), normalised(x)], dim=-1))
    assert site.enter(state) is state
    torch.testing.assert_close(site.branch_input(state), norm(0.5 * x + 3 * embedding, parameters(site)))
    torch.testing.assert_close(site(state, f), torch.cat([0.5 * x + 3 * embedding + f, embedding], dim=-1))


@pytest.mark.parametrize("final_norm", [False, True])
def test_stack_whose_layers_are_all_dropped_returns_the_normalised_embedding(final_norm):
    at = Place(C, kind="stream", sites=2, depths={"encoder": 1})
    site, end = (
        connections.build("embedding_shortcut", at),
        connections.build_stream("embedding_shortcut", at, final_norm),
    )
    x = 0.01 * torch.randn(3, C)
    torch.testing.assert_close(end(x), end(site.enter(x)))
    assert not final_norm or (end(x) - torch.nn.functional.layer_norm(x, (C,))).abs().max() > 0.01
