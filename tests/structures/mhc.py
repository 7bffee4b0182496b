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
from support.stacks import C, branch, moved_stack, parameters

EXAMPLES = [
    *grid(hyper_streams=[1, 2, 4], hyper_mixing=["sinkhorn", "permutation", "identity"]),
    *grid(hyper_streams=[1, 3], hyper_mixing=["sinkhorn", "permutation", "identity"], hyper_head=["learned"]),
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


def rms_normed(columns):
    flat = torch.cat(columns, dim=-1)
    return flat / (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def mixing_matrix(u, p, options):
    """Return H_res as rows of tensors, or of numbers for the identity."""
    n = options.hyper_streams
    if options.hyper_mixing == "identity":
        return [[float(k == j) * torch.ones(u.shape[:-1], dtype=u.dtype) for j in range(n)] for k in range(n)]
    logits = p["scales"][2] * (u @ p["mixing_weight"].T) + p["mixing_bias"]
    return (permuted if options.hyper_mixing == "permutation" else scaled)(logits.exp(), n)


def head(columns, p):
    """Compute the learned end of a stack, `mhc_head` of TileKernels without the optional gain of its norm.

    `mhc_pre_norm_fn_ref`, then `mhc_head_compute_mix_ref` and `mhc_pre_apply_mix_ref` in `tile_kernels/torch/mhc.py`.
    """
    u = rms_normed(columns)
    gates = 1 / (1 + torch.exp(-(p["head_scale"] * (u @ p["head_weight"].T) + p["head_bias"]))) + 1e-6
    return sum(gates[..., j, None] * column for j, column in enumerate(columns))


def stack(stack, x):
    """Compute a whole stack stream by stream."""
    n = stack.options.hyper_streams
    columns = [x for _ in range(n)]
    for i, site in enumerate(stack.sites):
        p = parameters(site)
        u = rms_normed(columns) * p["stream_weight"]
        pre = torch.sigmoid(p["scales"][0] * (u @ p["pre_weight"].T) + p["pre_bias"])
        post = 2 / (1 + torch.exp(-(p["scales"][1] * (u @ p["post_weight"].T) + p["post_bias"])))
        m = mixing_matrix(u, p, stack.options)
        f = branch(stack, i, norm(sum(pre[..., j, None] * columns[j] for j in range(n)), p))
        columns = [sum(m[k][j].unsqueeze(-1) * columns[j] for j in range(n)) + post[..., k, None] * f for k in range(n)]
    y = head(columns, parameters(stack.end)) if stack.options.hyper_head == "learned" else sum(columns)
    return layer_norm(y, stack.end.weight, stack.end.bias)


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


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_identity_equals_scaling_of_a_diagonal(kind):
    """Sinkhorn's scaling of exp(b), b = 500 on the diagonal and 0 elsewhere, gives the identity."""
    fixed, scaled = moved_stack("mhc", kind, hyper_mixing="identity"), moved_stack("mhc", kind)
    for mine, other in zip(fixed.sites, scaled.sites, strict=True):
        other.load_state_dict({**other.state_dict(), **mine.state_dict(), "scales": other.scales})
        with torch.no_grad():
            other.scales[:2] = mine.scales[:2]
            other.scales[2] = 0
            other.mixing_bias.copy_(500 * torch.eye(4).flatten())
    scaled.branches.load_state_dict(fixed.branches.state_dict())
    scaled.end.load_state_dict(fixed.end.state_dict())
    x = torch.randn(5, 2, C, dtype=torch.float64)
    torch.testing.assert_close(fixed(x), scaled(x), rtol=1e-12, atol=1e-12)


def test_identity_keeps_every_stream_and_adds_the_branch():
    site = connections.build("mhc", ALONE, hyper_mixing="identity")
    state, f = torch.randn(5, 16), torch.randn(5, 4)
    found = site.coefficients(state, f)
    assert list(found) == ["H_pre", "H_post"]
    added = (site(state, f) - state).unflatten(-1, (4, 4))
    torch.testing.assert_close(added, found["H_post"].unsqueeze(-1) * f.unsqueeze(-2))


def learned_end(scale, bias):
    """Return the end of a stack of 4 streams and a random state; the head has this scale and these biases."""
    torch.manual_seed(0)
    options = connections.resolve("mhc", {"hyper_head": "learned"})
    at = Place(C, "encoder", "stream", 2, True, 4, 4, {"encoder": 2})
    end = connections.build_stream("mhc", at, connections.resolve_final_norm("mhc", None), **options.values()).double()
    with torch.no_grad():
        end.head_scale.fill_(scale)
        end.head_bias.copy_(torch.tensor(bias))
    return end, torch.randn(3, 4 * C, dtype=torch.float64)


def test_learned_head_with_equal_gates_equals_the_sum():
    end, state = learned_end(0.0, [40.0] * 4)
    torch.testing.assert_close(end.leave(state), state.unflatten(-1, (4, C)).sum(-2) * (1 + 1e-6), rtol=1e-12, atol=0)


def test_learned_head_with_one_open_gate_returns_its_stream():
    end, state = learned_end(0.0, [-40.0, -40.0, 40.0, -40.0])
    streams = state.unflatten(-1, (4, C))
    torch.testing.assert_close(end.leave(state), streams[..., 2, :] + 1e-6 * streams.sum(-2), rtol=1e-12, atol=1e-15)


def test_learned_head_accepts_a_stack_whose_layers_are_all_dropped():
    """The end then gets x, which means n equal streams; a common factor only matters for the ε of the final norm."""
    end, _ = learned_end(0.7, [0.3, -1.0, 2.0, 0.0])
    x = torch.randn(3, C, dtype=torch.float64)
    torch.testing.assert_close(end(x), end(torch.cat([x] * 4, dim=-1)), rtol=1e-4, atol=1e-4)


def test_learned_head_starts_as_nearly_the_sum():
    """Every gate starts near 1/2, and the final norm removes this common factor."""
    torch.manual_seed(0)
    end = connections.build_stream("mhc", replace(ALONE, kind="stream"), False, hyper_head="learned")
    state = 3 * torch.randn(50, 16)
    streams = state.unflatten(-1, (4, 4))
    torch.testing.assert_close(end.leave(state), streams.sum(-2) / 2, rtol=0, atol=0.2)
    torch.testing.assert_close(end(state), torch.nn.functional.layer_norm(streams.sum(-2), (4,)), rtol=0, atol=0.05)
