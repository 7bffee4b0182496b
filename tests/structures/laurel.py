"""laurel: y = αF + β(x + BAx), where α and β are the softmax of two numbers."""

import torch

from fairseq_resid import connections
from support.formulas import grid, norm

EXAMPLES = grid(laurel_form=["both", "rw", "lr"], laurel_rank=[2, 5])
VARIANTS = {"rw": {"laurel_form": "rw"}, "lr": {"laurel_form": "lr"}}


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    a = b = 1.0
    if "residual_weights" in p:
        a, b = p["residual_weights"].exp() / p["residual_weights"].exp().sum()
    mapped = x
    if "down_weight" in p:
        mapped = x + torch.einsum("cr,rd,...d->...c", p["up_weight"], p["down_weight"], x)
    return a * f + b * mapped


def extra(c, options):
    return {"rw": 2, "lr": 0, "both": 2}[options.laurel_form] + (options.laurel_form != "rw") * 2 * c * min(
        options.laurel_rank, c
    )


def test_rank_is_at_most_the_width():
    """Of a map of higher rank, rows of A are 0 and stay 0."""
    site = connections.build("laurel", 6)
    assert site.down_weight.shape == (6, 6) and site.up_weight.shape == (6, 6)
    assert site.down_weight.count_nonzero(1).tolist() == [1] * 6
    assert connections.build("laurel", 48).down_weight.shape == (32, 48)


def test_checkpoint_with_a_rank_above_the_width_loads():
    """Before version 1.1, the rank was 32 for every width."""
    torch.manual_seed(1)
    a, b = torch.zeros(32, 6), torch.zeros(6, 32)
    a[:6], b[:, :6] = torch.randn(6, 6), torch.randn(6, 6)
    site = connections.build("laurel", 6)
    optimizer = torch.optim.Adam(site.parameters())
    site.load_state_dict({**site.state_dict(), "down_weight": a, "up_weight": b})
    assert torch.equal(site.down_weight, a) and torch.equal(site.up_weight, b)
    x, f = torch.randn(2, 3, 6)
    torch.testing.assert_close(site(x, f), 0.5 * f + 0.5 * (x + x @ a[:6].T @ b[:, :6].T))
    site(x, f).square().sum().backward()
    optimizer.step()
    assert not torch.equal(site.down_weight[:6], a[:6]) and not site.down_weight[6:].any()


def test_parameters_start_as_documented():
    site = connections.build("laurel", 6, laurel_rank=4)
    assert site.residual_weights.tolist() == [0, 0] and not site.up_weight.any()
    for i in range(4):
        for j in range(6):
            expected = torch.tensor(1 / 24**0.5 if j % 4 == i else 0.0)
            torch.testing.assert_close(site.down_weight[i, j].detach(), expected)
    assert connections.build("laurel", 6, laurel_form="lr").residual_weights is None
    assert connections.build("laurel", 6, laurel_form="rw").down_weight is None
