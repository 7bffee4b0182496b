"""mhc: n streams, mixed by a doubly stochastic matrix at every site (Xie 2025)."""

import itertools
import math

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.connections import Place
from fairseq_resid.ops import sinkhorn
from structures.hyper import weight_sum  # noqa: F401
from support.formulas import grid, layer_norm, norm
from support.stacks import branch, parameters

EXAMPLES = grid(hyper_streams=[1, 2, 4], hyper_mixing=["sinkhorn", "permutation"])
VARIANTS = {"permutation": {"hyper_mixing": "permutation"}}
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


def stack(stack, x):
    """Compute a whole stack stream by stream."""
    n = stack.options.hyper_streams
    columns = [x for _ in range(n)]
    for i, site in enumerate(stack.sites):
        p = parameters(site)
        flat = torch.cat(columns, dim=-1)
        u = flat / (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p["stream_weight"]
        pre = torch.sigmoid(p["scales"][0] * (u @ p["pre_weight"].T) + p["pre_bias"])
        post = 2 / (1 + torch.exp(-(p["scales"][1] * (u @ p["post_weight"].T) + p["post_bias"])))
        logits = p["scales"][2] * (u @ p["mixing_weight"].T) + p["mixing_bias"]
        make = permuted if stack.options.hyper_mixing == "permutation" else scaled
        m = make(logits.exp(), n)
        f = branch(stack, i, norm(sum(pre[..., j, None] * columns[j] for j in range(n)), p))
        columns = [sum(m[k][j].unsqueeze(-1) * columns[j] for j in range(n)) + post[..., k, None] * f for k in range(n)]
    return layer_norm(sum(columns), stack.end.weight, stack.end.bias)


def extra(c, options):
    n = options.hyper_streams
    mixing = math.factorial(n) if options.hyper_mixing == "permutation" else n * n
    return n * c + n * c * (n + n + mixing) + n + n + mixing + 3


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
