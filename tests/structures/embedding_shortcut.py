"""embedding_shortcut: x = λx + μx₀ before each layer, then x + f(LN(x)) (modded-nanogpt, nanochat/gpt.py)."""

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.connections import Place
from support.formulas import layer_norm, norm
from support.stacks import C, Stack, branch, by_layer, parameters

NANOCHAT = {"shortcut_start": "nanochat"}


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def stack(stack, x):
    x = start = rms(x)
    index = 0
    for sites in by_layer(stack, list(stack.sites)):
        first = parameters(sites[0])
        x = first["shortcut_scalar"] * x + first["embedding_scalar"] * start
        for site in sites:
            x = x + branch(stack, index, norm(x, parameters(site)))
            index += 1
    return layer_norm(x, stack.end.weight, stack.end.bias)


def extra(c, options):
    return 0  # a site that is not the first of its layer


def weight_sum(site):
    return max(2.0, 1 + sum(abs(weight.item()) for weight in site.coefficients(None, None).values()))


def scalars(made):
    first = [sites[0] for sites in by_layer(made, list(made.sites))]
    return [(site.shortcut_scalar.item(), site.embedding_scalar.item()) for site in first]


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_only_the_first_site_of_a_layer_has_scalars(name):
    made = Stack("embedding_shortcut", name, {"encoder": 4, "decoder": 3})
    for index, site in enumerate(made.sites):
        names = {key for key in parameters(site) if "scalar" in key}
        assert names == ({"shortcut_scalar", "embedding_scalar"} if index % made.kinds == 0 else set())
        assert set(site.coefficients(torch.zeros(2 * C), torch.zeros(C))) == ({"lambda", "mu"} if names else set())


def test_neutral_start_is_a_pre_norm_stack_on_the_normed_embedding():
    torch.manual_seed(0)
    made = Stack("embedding_shortcut", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain = Stack("pre_ln", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain.branches.load_state_dict(made.branches.state_dict())
    x = torch.randn(5, 2, C, dtype=torch.float64)
    torch.testing.assert_close(made(x), plain(rms(x)))
    assert scalars(made) == [(1.0, 0.0)] * 3


def test_nanochat_start_falls_linearly_with_depth():
    made = Stack("embedding_shortcut", "encoder", {"encoder": 3}, **NANOCHAT)
    torch.testing.assert_close(torch.tensor(scalars(made)), torch.tensor([(1.15, 0.2), (1.1, 0.125), (1.05, 0.05)]))
    single = Stack("embedding_shortcut", "encoder", {"encoder": 1}, **NANOCHAT)
    torch.testing.assert_close(torch.tensor(scalars(single)), torch.tensor([(1.15, 0.2)]))


def test_state_keeps_the_embedding():
    site = connections.build("embedding_shortcut", Place(C, last=False, sites=2, depths={"encoder": 1})).double()
    with torch.no_grad():
        site.shortcut_scalar.fill_(0.5)
        site.embedding_scalar.fill_(3.0)
    x, start, f = (torch.randn(3, C, dtype=torch.float64) for _ in range(3))
    state = torch.cat([x, start], dim=-1)
    torch.testing.assert_close(site.enter(x), torch.cat([rms(x), rms(x)], dim=-1))
    assert site.enter(state) is state
    torch.testing.assert_close(site.branch_input(state), norm(0.5 * x + 3 * start, parameters(site)))
    torch.testing.assert_close(site(state, f), torch.cat([0.5 * x + 3 * start + f, start], dim=-1))
