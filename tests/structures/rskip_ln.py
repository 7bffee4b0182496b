"""rskip_ln: y_1 = LN_1(x + F), y_k = LN_k(x + y_{k-1})."""

import pytest
import torch
from torch import nn

from fairseq_resid import connections
from support.formulas import grid, norm
from support.stacks import C, inputs, make

EXAMPLES = grid(skip_lambda=[1, 2, 3, 4])
VARIANTS = {"λ=3": {"skip_lambda": 3}}
LIMITS = [{"skip_lambda": 1}, {"skip_lambda": 8}]
COEFFICIENTS = {"ratio"}


def formula(x, f, p, options, place):
    y = norm(x + f, p)
    for k in range(2, options.skip_lambda + 1):
        y = norm(x + y, p, f"recursive_norms.{k - 2}")
    return y


def extra(c, options):
    return 2 * c * (options.skip_lambda - 1)


def test_one_norm_equals_post_ln_bitwise():
    recursive, plain = make("rskip_ln", {"skip_lambda": 1}, dtype=torch.float32), make("post_ln", {}).float()
    plain.load_state_dict(recursive.state_dict())
    x, f = inputs(5, 3, C, dtype=torch.float32)
    assert torch.equal(recursive(x, f), plain(x, f))


def test_parameters_start_as_documented():
    for module in connections.build("rskip_ln", 4, skip_lambda=3).modules():
        if isinstance(module, nn.LayerNorm):
            assert module.eps == 1e-5
            assert (module.weight == 1).all()
            assert not module.bias.any()


@pytest.mark.parametrize("lam", [2, 3, 4])
def test_effective_ratio_equals_its_formula(lam):
    """With constant statistics, the ratio of x to F in the input to the last norm is 1 + Σ_{i<λ} Π_{j≤i} σ_j/w_j.

    The test measures derivatives of s_λ = x + y_{λ-1} along directions that leave every mean and deviation unchanged.
    Along these, s_λ changes elementwise, by A ⊙ dx and by B ⊙ dF, and the ratio is A / B.
    """
    dim = 24
    torch.manual_seed(2)
    site = connections.build("rskip_ln", dim, skip_lambda=lam).double()
    with torch.no_grad():
        for key, parameter in site.named_parameters():
            parameter.copy_(torch.rand(dim) + 0.5 if "weight" in key else torch.randn(dim))
    shorter = {}
    for k in range(1, lam):
        shorter[k] = connections.build("rskip_ln", dim, skip_lambda=k).double()
        shorter[k].load_state_dict({key: site.state_dict()[key] for key in shorter[k].state_dict()})

    def seen_by_norm(k, x, f):
        return x + (f if k == 1 else shorter[k - 1](x, f))

    def statistics(x, f):
        sums = [seen_by_norm(k, x, f) for k in range(1, lam)]
        return torch.stack([v.mean() for v in sums] + [v.var(unbiased=False) for v in sums])

    x, f = inputs(dim)
    moved = []
    for constraint, change in zip(
        torch.autograd.functional.jacobian(statistics, (x, f)),
        torch.autograd.functional.jacobian(lambda x, f: seen_by_norm(lam, x, f), (x, f)),
        strict=True,
    ):
        still = torch.linalg.svd(constraint)[2][2 * (lam - 1) :].T  # directions that change no statistic
        direction = still @ torch.randn(still.size(1), dtype=torch.float64)
        moved.append(change @ direction / direction)
    expected, product = torch.ones(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
    norms = [site.norm, *site.recursive_norms]
    for k in range(1, lam):
        deviation = (seen_by_norm(k, x, f).var(unbiased=False) + 1e-5).sqrt()
        product = product * deviation / norms[k - 1].weight.detach()
        expected = expected + product
    torch.testing.assert_close(moved[0] / moved[1], expected, rtol=1e-6, atol=1e-6)
