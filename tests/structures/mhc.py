"""mhc: n streams, mixed by a doubly stochastic matrix at every site (Xie 2025)."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.connections import Place
from fairseq_resid.ops import sinkhorn
from structures.hyper import weight_sum  # noqa: F401
from support.formulas import grid, layer_norm, norm
from support.stacks import branch, parameters

MIXING = ["sinkhorn", "permutation", "identity"]
EXAMPLES = [
    *grid(hyper_streams=[1, 2, 4], hyper_mixing=MIXING),
    *grid(hyper_streams=[1, 3], hyper_mixing=MIXING, hyper_head=["learned"]),
]
VARIANTS = {
    "permutation": {"hyper_mixing": "permutation"},
    "identity": {"hyper_mixing": "identity"},
    "learned": {"hyper_head": "learned"},
}
IS_SLOW = True
HAS_GATE = True
ALONE = Place(4, depths={"encoder": 1})


def scaled(numbers, n):
    """Apply Sinkhorn's scaling with loops over rows and columns."""
    m = [[numbers[..., n * k + j] for j in range(n)] for k in range(n)]
    for _ in range(20):
        sums = [sum(m[k][j] for k in range(n)) for j in range(n)]
        m = [[m[k][j] / sums[j] for j in range(n)] for k in range(n)]
        m = [[row[j] / sum(row) for j in range(n)] for row in m]
    return m


def permuted(numbers, n):
    """Return a mean of permutations (mHC-lite, arXiv 2601.05732): p moves stream p(k) of the state to stream k."""
    shares, total = numbers.unbind(-1), numbers.sum(-1)
    orders = list(itertools.permutations(range(n)))

    def entry(k, j):
        return sum(share for share, p in zip(shares, orders, strict=True) if p[k] == j) / total

    return [[entry(k, j) for j in range(n)] for k in range(n)]


def normed(columns):
    """Return all streams side by side, divided by their root mean square."""
    flat = torch.cat(columns, dim=-1)
    return flat / (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def matrix(u, p, n, mixing):
    """Return the entries of H_res."""
    if mixing == "identity":
        return [[torch.full_like(u[..., 0], float(k == j)) for j in range(n)] for k in range(n)]
    logits = p["scales"][2] * (u @ p["mixing_weight"].T) + p["mixing_bias"]
    return (permuted if mixing == "permutation" else scaled)(logits.exp(), n)


def stack(stack, x):
    """Compute a whole stack stream by stream."""
    n, mixing = stack.options.hyper_streams, stack.options.hyper_mixing
    columns = [x for _ in range(n)]
    for i, site in enumerate(stack.sites):
        p = parameters(site)
        u = normed(columns) * p["stream_weight"]
        pre = torch.sigmoid(p["scales"][0] * (u @ p["pre_weight"].T) + p["pre_bias"])
        post = 2 / (1 + torch.exp(-(p["scales"][1] * (u @ p["post_weight"].T) + p["post_bias"])))
        m = matrix(u, p, n, mixing)
        f = branch(stack, i, norm(sum(pre[..., j, None] * columns[j] for j in range(n)), p))
        columns = [sum(m[k][j].unsqueeze(-1) * columns[j] for j in range(n)) + post[..., k, None] * f for k in range(n)]
    if stack.options.hyper_head == "learned":
        p = parameters(stack.end)
        gates = torch.sigmoid(p["head_scale"] * (normed(columns) @ p["head_weight"].T) + p["head_bias"]) + 1e-6
        columns = [gates[..., k, None] * columns[k] for k in range(n)]
    return layer_norm(sum(columns), stack.end.weight, stack.end.bias)


def extra(c, options):
    n = options.hyper_streams
    mixing = {"sinkhorn": n * n, "permutation": math.factorial(n), "identity": 0}[options.hyper_mixing]
    scales = 2 if options.hyper_mixing == "identity" else 3
    return n * c + n * c * (n + n + mixing) + n + n + mixing + scales


def test_gates_of_large_fp16_numbers_equal_fp32_gates():
    wide = connections.build("mhc", ALONE).half()
    state = torch.full((1, 16), 300.0, dtype=torch.float16)
    state[..., ::2] = -300.0
    gates = [*wide.writing_weights(state), wide.reading_weights(state)]
    wide = wide.float()
    expected = [*wide.writing_weights(state.float()), wide.reading_weights(state.float())]
    for found, exact in zip(gates, expected, strict=True):
        torch.testing.assert_close(found.float(), exact, atol=1e-3, rtol=1e-2)


def test_mixing_starts_near_the_identity():
    site = connections.build("mhc", ALONE)
    start = sinkhorn(site.mixing_bias.view(4, 4), 20)
    assert (start.diagonal() > 0.99).all()
    site = connections.build("mhc", ALONE, hyper_mixing="permutation")
    start = site.writing_weights(torch.zeros(16))[0]
    assert (start.diagonal() > 0.99).all()


def test_mean_of_permutations_is_doubly_stochastic_for_large_logits():
    site = connections.build("mhc", ALONE, hyper_mixing="permutation")
    site.mixing_bias.data.normal_(std=25)
    matrix = site.writing_weights(torch.randn(50, 16))[0]
    for dim in (-1, -2):
        torch.testing.assert_close(matrix.sum(dim), torch.ones(50, 4))


def test_identity_keeps_every_stream_and_adds_the_branch():
    site = connections.build("mhc", ALONE, hyper_mixing="identity")
    state, f = torch.randn(5, 16), torch.randn(5, 4)
    added = (site(state, f) - state).unflatten(-1, [4, 4])
    post = site.writing_weights(state)[1]
    torch.testing.assert_close(added, post.unsqueeze(-1) * f.unsqueeze(-2))
    assert set(site.coefficients(state, f)) == {"H_pre", "H_post"}
    assert not [name for name, _ in site.named_parameters() if name.startswith("mixing")]
    assert site.scales.shape == (2,)


def test_learned_head_starts_with_nearly_equal_weights():
    torch.manual_seed(0)
    end = connections.build_stream("mhc", replace(ALONE, kind="stream"), False, hyper_head="learned")
    state = torch.randn(50, 16)
    mean = state.unflatten(-1, [4, 4]).mean(-2)
    torch.testing.assert_close(end.leave(state), 2 * mean, atol=0.05, rtol=0)  # four weights of σ(0) = 0.5
    x = torch.randn(50, 4)
    assert torch.equal(end.leave(x), x)  # all layers were dropped


def test_weights_of_the_learned_head_stay_positive():
    end = connections.build_stream("mhc", replace(ALONE, kind="stream"), False, hyper_head="learned")
    end.head_bias.data.fill_(-1000.0)
    state = torch.randn(5, 16)
    torch.testing.assert_close(end.leave(state), 1e-6 * state.unflatten(-1, [4, 4]).sum(-2))


def test_permutations_are_bounded():
    with pytest.raises(ValueError, match=r"^hyper_streams=6: must be <= 5 with hyper_mixing='permutation'$"):
        connections.build("mhc", ALONE, hyper_streams=6, hyper_mixing="permutation")


def test_normalised_streams_are_not_materialised():
    """The product with φ is rescaled instead of the (..., nC) streams u, and one GEMM computes H_res and H_post."""
    site = connections.build("mhc", Place(8, depths={"encoder": 1}), hyper_streams=4)
    state = torch.randn(50, 32, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        site.writing_weights(state)
    wide = {tensor.untyped_storage().data_ptr() for tensor in saved if tensor.shape[-1:] == (32,) and len(tensor) == 50}
    assert wide == {state.untyped_storage().data_ptr()}
