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
    return {"rw": 2, "lr": 0, "both": 2}[options.laurel_form] + (
        options.laurel_form != "rw"
    ) * 2 * c * options.laurel_rank


def test_parameters_start_as_documented():
    site = connections.build("laurel", 6, laurel_rank=4)
    assert site.residual_weights.tolist() == [0, 0] and not site.up_weight.any()
    for i in range(4):
        for j in range(6):
            expected = torch.tensor(1 / 24**0.5 if j % 4 == i else 0.0)
            torch.testing.assert_close(site.down_weight[i, j].detach(), expected)
    assert connections.build("laurel", 6, laurel_form="lr").residual_weights is None
    assert connections.build("laurel", 6, laurel_form="rw").down_weight is None
