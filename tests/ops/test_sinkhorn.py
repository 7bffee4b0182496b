"""The Sinkhorn function for training, compared with the plain rounds that it replaces."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from fairseq_resid.ops import sinkhorn
from fairseq_resid.ops.sinkhorn import sinkhorn_rounds

pytestmark = pytest.mark.once  # needs only torch

ROUNDS = 20
SHAPES = [(7, 5, 3, 3), (0, 4, 4), (4, 4), (50, 32, 32), (9, 1, 1), (4096, 4, 4)]


def with_offsets(logits: torch.Tensor, dim: int) -> torch.Tensor:
    """Return logits whose rows (dim -2) or columns (dim -1) are ±200 apart, beyond the range of exp."""
    offsets = 200 * (torch.arange(logits.size(dim), dtype=logits.dtype) % 3 - 1)
    return logits + offsets.unsqueeze(-1 if dim == -2 else 0)


def exact_rounds(logits: torch.Tensor, steps: int) -> torch.Tensor:
    """Compute every round with logarithms, which neither overflow nor underflow."""
    for _ in range(steps):
        logits = logits - torch.logsumexp(logits, -2, keepdim=True)
        logits = logits - torch.logsumexp(logits, -1, keepdim=True)
    return logits.exp()


def values_and_gradients(function, logits, gradient):
    logits = logits.clone().requires_grad_()
    result = function(logits, ROUNDS)
    return result.detach(), torch.autograd.grad(result, logits, gradient)[0]


def test_sinkhorn_gives_a_doubly_stochastic_matrix():
    found = sinkhorn(3 * torch.randn(50, 4, 4, dtype=torch.float64), ROUNDS)
    assert (found > 0).all()
    torch.testing.assert_close(
        found.sum(-1), torch.ones(50, 4, dtype=torch.float64)
    )  # the last step normalises the rows
    torch.testing.assert_close(found.sum(-2), torch.ones(50, 4, dtype=torch.float64), atol=0.05, rtol=0)
    for logits in ([[1e4, 0.0], [0.0, 1e4]], [[200.0, 200.0], [0.0, 0.0]]):
        assert sinkhorn(torch.tensor(logits), ROUNDS).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1, 10, 300])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_equal_the_plain_rounds(shape, scale, dtype):
    logits, gradient = scale * torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    for given in (logits, with_offsets(logits, -2), with_offsets(logits, -1), torch.zeros_like(logits)):
        ours = values_and_gradients(sinkhorn, given, gradient)
        theirs = values_and_gradients(sinkhorn_rounds, given, gradient)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", [sinkhorn, sinkhorn_rounds])
@pytest.mark.parametrize("dim", [-2, -1])
def test_offset_of_a_row_or_column_does_not_change_the_result(dim, function, dtype):
    logits, gradient = torch.randn(50, 4, 4, dtype=dtype) / 2, torch.randn(50, 4, 4, dtype=dtype)
    found = values_and_gradients(function, with_offsets(logits, dim), gradient)
    # fp32 rounds logits near 200 to 1.5e-5. Row offsets only change how fast the rounds converge.
    expected = values_and_gradients(exact_rounds, logits, gradient)
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-5 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("scale", [1, 10, 300])
@pytest.mark.parametrize("n", [1, 2, 4, 9])
def test_extreme_logits_give_the_exact_values_and_gradients(n, scale):
    logits, gradient = scale * torch.randn(50, n, n, dtype=torch.float64), torch.randn(50, n, n, dtype=torch.float64)
    for given in (logits, with_offsets(logits, -2), with_offsets(with_offsets(logits, -2), -1)):
        found = values_and_gradients(sinkhorn, given, gradient)
        torch.testing.assert_close(found, values_and_gradients(exact_rounds, given, gradient), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_logits_are_normalised_in_fp32(dtype):
    logits = torch.randn(6, 4, 4, dtype=dtype)
    found = sinkhorn(logits, ROUNDS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sinkhorn_rounds(logits.float(), ROUNDS))


def test_autocast_leaves_the_rounds_in_fp32():
    logits, gradient = torch.randn(6, 4, 4), torch.randn(6, 4, 4)
    expected = values_and_gradients(sinkhorn, logits, gradient)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, values_and_gradients(sinkhorn, logits, gradient), expected))


def test_first_and_second_derivatives_pass_gradcheck():
    logits = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: sinkhorn(given, ROUNDS), logits)
    assert torch.autograd.gradgradcheck(lambda given: sinkhorn(given, 5), logits)
    for dim in (-2, -1):
        assert torch.autograd.gradcheck(lambda given, dim=dim: sinkhorn(with_offsets(given, dim), ROUNDS), logits)
        assert torch.autograd.gradgradcheck(lambda given, dim=dim: sinkhorn(with_offsets(given, dim), 5), logits)


def test_backward_saves_sums_but_no_intermediate_matrices():
    logits, saved = torch.randn(100, 4, 4, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        result = sinkhorn(logits, ROUNDS)
    assert sum(tensor.numel() for tensor in saved) == 2 * logits.numel() + 2 * (ROUNDS - 1) * 100 * 4
    result.sum().backward()  # must not change the saved tensors
    assert torch.equal(saved[0], logits)


def test_backward_can_run_twice():
    logits = torch.randn(5, 4, 4, requires_grad=True)
    result = sinkhorn(logits, ROUNDS)
    first, second = (torch.autograd.grad(result, logits, result.detach(), retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_transforms_and_compilers_trace_the_plain_rounds():
    logits = torch.randn(5, 4, 4)
    call = lambda given: sinkhorn(given, ROUNDS)  # noqa: E731
    expected = sinkhorn_rounds(logits, ROUNDS)
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    for found in (compiled(logits), torch.func.vmap(call)(logits)):
        torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(call(forward_ad.make_dual(logits, torch.ones_like(logits)))).tangent
    torch.testing.assert_close(tangent, torch.zeros_like(logits), atol=1e-6, rtol=0)  # a common shift changes nothing
