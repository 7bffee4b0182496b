"""Fused kernels and their dropout compared with the formulas in fp64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_resid import ops
from fairseq_resid.ops import dispatch
from support.kernels import (
    DEVICE,
    DTYPES,
    KERNELS,
    chain,
    chain_parameters,
    check,
    draw,
    each_kernel,
    fused_chain,
    in_double,
    results,
    sas_parameters,
    weighted_chain_parameters,
)

pytestmark = pytest.mark.once  # needs only torch and triton

# Calls are slow in the interpreter; on a GPU, they are cheap compared with compilation.
few = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("norms", [1, 2, 3, 4, 5, 9])
def test_chain_kernel_handles_any_number_of_norms(norms: int) -> None:
    check("chain", draw(3, 64, seed=1), draw(3, 64, seed=2), chain_parameters(64, norms), 0.2)


@pytest.mark.parametrize("norms", [1, 2, 5])
def test_every_norm_of_a_chain_uses_the_vector(norms: int) -> None:
    parameters = weighted_chain_parameters(64, norms)
    check("weighted_chain", draw(3, 64, seed=1), draw(3, 64, seed=2), parameters, 0.2)


@each_kernel
def test_kernels_handle_many_rows(kind: str) -> None:
    """There are more rows than one program of the backward kernel processes."""
    check(kind, draw(33, 64, seed=1), draw(33, 64, seed=2), KERNELS[kind].parameters(64))


widths = st.sampled_from([64, 65, 96, 127])


@few
@given(
    rows=st.sampled_from([(1,), (2,), (3, 2), (7,)]),
    c=widths,
    norms=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    p=st.sampled_from([0.0, 0.1, 0.5]),
    lam=st.sampled_from([1.0, 2.0, 0.5]),
    mu=st.sampled_from([1.0, 3.0]),
    magnitude=st.sampled_from([1e-2, 1.0, 50.0]),
)
def test_chain_kernel_equals_fp64_formula(
    rows: tuple[int, ...], c: int, norms: int, dtype: torch.dtype, p: float, lam: float, mu: float, magnitude: float
) -> None:
    x, f = (draw(*rows, c, dtype=dtype, scale=magnitude, seed=seed) for seed in (1, 2))
    check("chain", x, f, chain_parameters(c, norms, dtype), p, lam=lam, mu=mu)


@pytest.mark.parametrize("kind", ["weighted_chain", "branch_norm", "sas"])
@few
@given(
    rows=st.sampled_from([(1,), (2,), (3, 2), (7,)]),
    c=widths,
    dtype=st.sampled_from(DTYPES),
    p=st.sampled_from([0.0, 0.1, 0.5]),
    magnitude=st.sampled_from([1e-2, 1.0, 4.0]),
)
def test_other_kernels_equal_fp64_formula(
    kind: str, rows: tuple[int, ...], c: int, dtype: torch.dtype, p: float, magnitude: float
) -> None:
    x, f = (draw(*rows, c, dtype=dtype, scale=magnitude, seed=seed) for seed in (1, 2))
    check(kind, x, f, KERNELS[kind].parameters(c, dtype), p)


@pytest.mark.parametrize("c", [64, 384, 512, 513, 1000, 2048])
@each_kernel
def test_kernels_handle_any_width(kind: str, c: int) -> None:
    check(kind, draw(2, c, seed=1), draw(2, c, seed=2), KERNELS[kind].parameters(c), 0.1)


def test_kernels_handle_the_widest_row() -> None:
    c = dispatch.MOST_CHANNELS
    x, f = (draw(2, c, dtype=torch.float16, seed=seed) for seed in (1, 2))
    check("chain", x, f, chain_parameters(c, 3, torch.float16), 0.1)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1e6, 1e15], ids=str)
def test_kernels_handle_extreme_values(magnitude: float) -> None:
    """The norm divides by sqrt(variance + eps), so tiny rows stay tiny. Huge rows are normalised without overflow."""
    x, f = (draw(2, 96, scale=magnitude, seed=seed) for seed in (1, 2))
    check("chain", x, f, chain_parameters(96, 2))


def test_sums_beyond_fp16_range_stay_finite() -> None:
    x, f = (draw(2, 64, dtype=torch.float16, scale=1e4, shift=5e4, seed=seed) for seed in (1, 2))
    with torch.no_grad():
        x.clamp_(-65000, 65000), f.clamp_(-65000, 65000)
    found = fused_chain(x, f, chain_parameters(64, 2, torch.float16))
    expected = chain(x.double(), f.double(), in_double(*chain_parameters(64, 2, torch.float16)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e4])
def test_kernels_handle_rows_without_variance(value: float) -> None:
    """In these rows, u = 0, and the gradient contains rstd = 1 / sqrt(eps)."""
    x, f = (torch.full((2, 65), sign * value, device=DEVICE).requires_grad_() for sign in (2.0, -1.0))
    check("chain", x, f, chain_parameters(65, 1), slack=30)
    check("branch_norm", x, f, chain_parameters(65, 1), slack=30)
    check("sas", x, f, sas_parameters(65), slack=30)


def test_large_mean_costs_no_precision() -> None:
    x, f = draw(2, 128, shift=3000.0, seed=1), draw(2, 128, seed=2)
    found = fused_chain(x, f, chain_parameters(128, 1)).double()
    expected = chain(*in_double(x, f), in_double(*chain_parameters(128, 1)))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@each_kernel
def test_kernels_accept_non_contiguous_input_and_gradient(kind: str) -> None:
    function, parameters = KERNELS[kind].fused, KERNELS[kind].parameters(64)
    x, f, g = (draw(2, 3, 64, seed=seed).detach() for seed in (1, 2, 3))
    expected = results(function, x.requires_grad_(), f.requires_grad_(), parameters, g)
    strided = [t.detach().transpose(0, 1).contiguous().transpose(0, 1) for t in (x, g)]
    sliced = torch.cat([f.detach(), f.detach()], dim=-1)[..., 64:]
    assert not any(t.is_contiguous() for t in (*strided, sliced))
    found = results(function, strided[0].requires_grad_(), sliced.requires_grad_(), parameters, strided[1])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@each_kernel
def test_kernels_accept_expanded_gradient(kind: str) -> None:
    """The gradient of a sum has strides of zero."""
    function, reference, parameters = KERNELS[kind].fused, KERNELS[kind].formula, KERNELS[kind].parameters(64)
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    found = torch.autograd.grad(function(x, f, parameters).sum(), [x, f])
    wide = in_double(x, f, *parameters)
    expected = torch.autograd.grad(reference(wide[0], wide[1], wide[2:]).sum(), wide[:2])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [0.1, 0.3])
def test_dropout_mask_is_random_and_reproducible(p: float) -> None:
    """The rate is correct for each of the 8 channels that share a philox call, and the draws are independent."""
    mask = ops.dropout_mask((16, 1024), p, 11, DEVICE)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    dropped = 1 - mask
    deviation = math.sqrt(p * (1 - p) / mask.numel())
    assert dropped.mean().item() == pytest.approx(p, abs=4 * deviation)
    lanes = dropped.view(-1, 8)
    assert (lanes.mean(0) - p).abs().max() < 4 * deviation * math.sqrt(8)
    together = torch.corrcoef(lanes.T) - torch.eye(8, device=DEVICE)
    assert together.abs().max() < 5 / math.sqrt(lanes.size(0))
    rows = torch.corrcoef(dropped) - torch.eye(16, device=DEVICE)
    assert rows.abs().max() < 5 / math.sqrt(1024)
    assert torch.equal(ops.dropout_mask((16, 1024), p, 11, DEVICE), mask)
    other = ops.dropout_mask((16, 1024), p, 12, DEVICE)
    assert abs(torch.corrcoef(torch.stack([mask, other]).flatten(1))[0, 1]) < 5 / math.sqrt(mask.numel())


@each_kernel
def test_dropout_follows_the_seed_of_torch(kind: str) -> None:
    function, parameters = KERNELS[kind].fused, KERNELS[kind].parameters(64)
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    torch.manual_seed(4)
    first, second = (function(x, f, parameters, 0.5) for _ in range(2))
    torch.manual_seed(4)
    assert torch.equal(function(x, f, parameters, 0.5), first)
    assert not torch.equal(second, first)


@each_kernel
def test_deterministic_mode_repeats_results_bitwise(kind: str) -> None:
    function, parameters = KERNELS[kind].fused, KERNELS[kind].parameters(64)
    x, f, g = draw(9, 64, seed=1), draw(9, 64, seed=2), draw(9, 64, seed=3).detach()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (results(function, x, f, parameters, g, p=0.1, seed=6) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
