"""The fused kernels against the formulas in fp64: on a GPU where there is one, else under Triton's interpreter."""

from __future__ import annotations

import copy
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_resid import connections, ops
from fairseq_resid.ops import dispatch, fused, self_check

if sys.platform != "linux":
    pytest.skip("triton has no build for this system", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.once  # torch and triton alone
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
EPS = 1e-5
KERNELS = ("dropout", "chain_forward", "chain_backward", "sas_forward", "sas_backward")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
if DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 0):
    DTYPES.remove(torch.bfloat16)
# Calls are slow under the interpreter, and cheap beside the compilation of each kind on a GPU.
few = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)

Tensors = list[Tensor]


# --- the reference: the formulas in fp64 ---------------------------------------------------------------------------


def norm(s: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = s - s.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * weight + bias


def chain(x: Tensor, f: Tensor, parameters: Tensors, lam: float = 1.0, mu: float = 1.0) -> Tensor:
    y = mu * f
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        y = norm(lam * x + y, weight, bias)
    return y


def sas(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    hidden_weight, hidden_bias, output_weight, output_bias, weight, bias = parameters
    hidden = torch.tanh(torch.cat([x, f], dim=-1) @ hidden_weight.T + hidden_bias)
    c = x.size(-1)
    alpha, beta = (
        torch.sigmoid(hidden[..., gate * c : (gate + 1) * c] @ output_weight[gate] + output_bias[gate]).unsqueeze(-1)
        for gate in (0, 1)
    )
    return alpha * x + beta * f + (1 - alpha) * (1 - beta) * norm(x + f, weight, bias)


def fused_chain(x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, **given: Any) -> Tensor:
    return ops.fused_recursive_layer_norm(x, f, parameters[::2], parameters[1::2], EPS, p, **given)


def fused_sas(x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, **given: Any) -> Tensor:
    return ops.fused_self_adaptive_scaling(x, f, *parameters, EPS, p, **given)  # type: ignore[misc]


def eager_chain(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    return ops.recursive_layer_norm(x, f, parameters[::2], parameters[1::2], EPS)


def eager_sas(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    alpha, beta = torch.sigmoid(ops.scaling_gate(x, f, *parameters[:4])).chunk(2, dim=-1)
    return ops.self_adaptive_scaling(x, f, alpha, beta, (1 - alpha) * (1 - beta), *parameters[4:], EPS)


# --- what the tests are made of ------------------------------------------------------------------------------------


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, shift: float = 0.0, seed: int) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + shift
    return values.to(DEVICE, dtype).requires_grad_()


def chain_parameters(c: int, norms: int, dtype: torch.dtype = torch.float32) -> Tensors:
    return [draw(c, dtype=dtype, scale=0.3, shift=1 - i % 2, seed=10 + i) for i in range(2 * norms)]


def sas_parameters(c: int, dtype: torch.dtype = torch.float32) -> Tensors:
    shapes = [(2 * c, 2 * c), (2 * c,), (2, c), (2,), (c,), (c,)]
    scales = [1 / math.sqrt(c), 0.3, 1 / math.sqrt(c), 0.5, 0.3, 0.3]
    return [
        draw(*shape, dtype=dtype, scale=scale, shift=float(i == 4), seed=30 + i)
        for i, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
    ]


def results(function: Any, x: Tensor, f: Tensor, parameters: Tensors, g: Tensor, **given: Any) -> Tensors:
    """y and every gradient of it."""
    y = function(x, f, parameters, **given)
    return [y, *torch.autograd.grad(y, [x, f, *parameters], g.to(y.dtype))]


def in_double(*tensors: Tensor) -> Tensors:
    return [t.detach().double().requires_grad_() for t in tensors]


def check(
    kind: str, x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, slack: float = 1.0, **scales: float
) -> None:
    """y and every gradient to fp32's rounding, or in 16 bits to twice the error of eager PyTorch, the masks equal."""
    kernel, reference, eager = {
        "chain": (fused_chain, chain, eager_chain),
        "sas": (fused_sas, sas, eager_sas),
    }[kind]
    g = draw(*x.shape, dtype=x.dtype, seed=5).detach()
    mask = ops.dropout_mask(tuple(x.shape), p, 3, DEVICE) / (1 - p) if p else torch.ones_like(x)
    names = {"lam": "x_scale", "mu": "f_scale"}
    seeded = {"p": p, "seed": 3} if p else {}
    found = results(kernel, x, f, parameters, g, **seeded, **{names[key]: value for key, value in scales.items()})
    assert [t.dtype for t in found] == [x.dtype, x.dtype, f.dtype, *(t.dtype for t in parameters)]
    double_x, double_f, *double_parameters = in_double(x, f, *parameters)
    wide = mask.double()
    expected = results(
        lambda x, f, parameters: reference(x, f * wide, parameters, **scales),
        double_x, double_f, double_parameters, g.double(),
    )  # fmt: skip
    allowed = [0.0] * len(found)
    if x.dtype != torch.float32:
        narrow = mask.to(x.dtype)
        lam, mu = scales.get("lam", 1.0), scales.get("mu", 1.0)
        theirs = results(lambda x, f, parameters: eager(lam * x, mu * (f * narrow), parameters), x, f, parameters, g)
        allowed = [2 * (a.double() - b).abs().max().item() for a, b in zip(theirs, expected, strict=True)]
    for index, (ours, right, error) in enumerate(zip(found, expected, allowed, strict=True)):
        scale = right.abs().max().clamp(min=1e-3).item()
        tolerance = error + slack * scale * (4e-5 if x.dtype == torch.float32 else torch.finfo(x.dtype).eps)
        worst = (ours.double() - right).abs().max().item()
        assert worst <= tolerance, (kind, index, worst, tolerance)


@pytest.mark.parametrize("norms", [1, 2, 3, 4, 5, 9])
def test_any_number_of_norms(norms: int) -> None:
    check("chain", draw(3, 64, seed=1), draw(3, 64, seed=2), chain_parameters(64, norms), 0.2)


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
def test_chain(
    rows: tuple[int, ...], c: int, norms: int, dtype: torch.dtype, p: float, lam: float, mu: float, magnitude: float
) -> None:
    x, f = (draw(*rows, c, dtype=dtype, scale=magnitude, seed=seed) for seed in (1, 2))
    check("chain", x, f, chain_parameters(c, norms, dtype), p, lam=lam, mu=mu)


@few
@given(
    rows=st.sampled_from([(1,), (2,), (3, 2), (7,)]),
    c=widths,
    dtype=st.sampled_from(DTYPES),
    p=st.sampled_from([0.0, 0.1, 0.5]),
    magnitude=st.sampled_from([1e-2, 1.0, 4.0]),
)
def test_sas(rows: tuple[int, ...], c: int, dtype: torch.dtype, p: float, magnitude: float) -> None:
    x, f = (draw(*rows, c, dtype=dtype, scale=magnitude, seed=seed) for seed in (1, 2))
    check("sas", x, f, sas_parameters(c, dtype), p)


@pytest.mark.parametrize("c", [64, 384, 512, 513, 1000, 2048])
@pytest.mark.parametrize("kind", ["chain", "sas"])
def test_widths(kind: str, c: int) -> None:
    parameters = chain_parameters(c, 2) if kind == "chain" else sas_parameters(c)
    check(kind, draw(2, c, seed=1), draw(2, c, seed=2), parameters, 0.1)


def test_the_widest_row() -> None:
    c = dispatch.MOST_CHANNELS
    x, f = (draw(2, c, dtype=torch.float16, seed=seed) for seed in (1, 2))
    check("chain", x, f, chain_parameters(c, 3, torch.float16), 0.1)


@pytest.mark.parametrize("kind", ["chain", "sas"])
def test_many_rows(kind: str) -> None:
    """More rows than a program of the backward kernel takes at once."""
    parameters = chain_parameters(64, 2) if kind == "chain" else sas_parameters(64)
    check(kind, draw(33, 64, seed=1), draw(33, 64, seed=2), parameters)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1e6, 1e15], ids=str)
def test_extreme_values(magnitude: float) -> None:
    """The norm divides by sqrt(variance + eps): tiny rows stay tiny, huge ones are normalised without overflow."""
    x, f = (draw(2, 96, scale=magnitude, seed=seed) for seed in (1, 2))
    check("chain", x, f, chain_parameters(96, 2))


def test_sums_beyond_the_largest_fp16() -> None:
    x, f = (draw(2, 64, dtype=torch.float16, scale=1e4, shift=5e4, seed=seed) for seed in (1, 2))
    with torch.no_grad():
        x.clamp_(-65000, 65000), f.clamp_(-65000, 65000)
    found = fused_chain(x, f, chain_parameters(64, 2, torch.float16))
    expected = chain(x.double(), f.double(), in_double(*chain_parameters(64, 2, torch.float16)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e4])
def test_rows_without_variance(value: float) -> None:
    """u = 0 there, and rstd = 1 / sqrt(eps) in the gradient."""
    x, f = (torch.full((2, 65), sign * value, device=DEVICE).requires_grad_() for sign in (2.0, -1.0))
    check("chain", x, f, chain_parameters(65, 1), slack=30)
    check("sas", x, f, sas_parameters(65), slack=30)


def test_a_large_mean_costs_no_digits() -> None:
    x, f = draw(2, 128, shift=3000.0, seed=1), draw(2, 128, seed=2)
    found = fused_chain(x, f, chain_parameters(128, 1)).double()
    expected = chain(*in_double(x, f), in_double(*chain_parameters(128, 1)))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["chain", "sas"])
def test_non_contiguous_input_and_gradient(kind: str) -> None:
    function = fused_chain if kind == "chain" else fused_sas
    parameters = chain_parameters(64, 2) if kind == "chain" else sas_parameters(64)
    x, f, g = (draw(2, 3, 64, seed=seed).detach() for seed in (1, 2, 3))
    expected = results(function, x.requires_grad_(), f.requires_grad_(), parameters, g)
    strided = [t.detach().transpose(0, 1).contiguous().transpose(0, 1) for t in (x, g)]
    sliced = torch.cat([f.detach(), f.detach()], dim=-1)[..., 64:]
    assert not any(t.is_contiguous() for t in (*strided, sliced))
    found = results(function, strided[0].requires_grad_(), sliced.requires_grad_(), parameters, strided[1])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["chain", "sas"])
def test_an_expanded_gradient(kind: str) -> None:
    """What the backward of a sum hands over has strides of zero."""
    function, reference = (fused_chain, chain) if kind == "chain" else (fused_sas, sas)
    parameters = chain_parameters(64, 2) if kind == "chain" else sas_parameters(64)
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    found = torch.autograd.grad(function(x, f, parameters).sum(), [x, f])
    wide = in_double(x, f, *parameters)
    expected = torch.autograd.grad(reference(wide[0], wide[1], wide[2:]).sum(), wide[:2])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


# --- dropout -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.3])
def test_the_mask(p: float) -> None:
    """Dropped as often as asked, in every place of the 8 channels that share one call of philox, and independently."""
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


@pytest.mark.parametrize("kind", ["chain", "sas"])
def test_the_seed_is_torchs(kind: str) -> None:
    function = fused_chain if kind == "chain" else fused_sas
    parameters = chain_parameters(64, 1) if kind == "chain" else sas_parameters(64)
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    torch.manual_seed(4)
    first, second = (function(x, f, parameters, 0.5) for _ in range(2))
    torch.manual_seed(4)
    assert torch.equal(function(x, f, parameters, 0.5), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("kind", ["chain", "sas"])
def test_results_are_repeated_bit_by_bit(kind: str) -> None:
    parameters = chain_parameters(64, 2) if kind == "chain" else sas_parameters(64)
    x, f, g = draw(9, 64, seed=1), draw(9, 64, seed=2), draw(9, 64, seed=3).detach()
    torch.use_deterministic_algorithms(True)
    try:
        function = fused_chain if kind == "chain" else fused_sas
        first, second = (results(function, x, f, parameters, g, p=0.1, seed=6) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# --- what is kept, and what is refused -----------------------------------------------------------------------------


def site(
    name: str, c: int = 64, p: float | nn.Module = 0.0, backend: str = "triton", **options: Any
) -> connections.ResidualConnection:
    torch.manual_seed(2)
    made = connections.build(name, c, p, backend=backend, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return made.to(DEVICE).train()


def twin(made: connections.ResidualConnection, backend: str = "eager") -> connections.ResidualConnection:
    other = copy.deepcopy(made)
    other.backend = backend
    return other


FUSED: list[tuple[str, dict[str, Any]]] = [
    ("post_ln", {}),
    ("xskip_ln", {"skip_lambda": 3.0, "branch_scale": 2.0}),
    ("rskip_ln", {"skip_lambda": 1}),
    ("rskip_ln", {"skip_lambda": 3}),
    ("sas", {"sas_alpha_bias": 0.5}),
]
every = pytest.mark.parametrize(("name", "options"), FUSED, ids=[f"{n}-{o.get('skip_lambda', '')}" for n, o in FUSED])


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("post_ln", {}, 1.05),
        ("rskip_ln", {"skip_lambda": 2}, 1.05),
        ("rskip_ln", {"skip_lambda": 3}, 1.05),
        ("sas", {}, 3.1),
    ],
)
def test_saved_activations(name: str, options: dict[str, Any], most: float) -> None:
    """Beyond x, which the sublayer's first GEMM keeps anyway, in C-vectors per token in the activations' dtype."""
    c, rows = 512, 2
    made = site(name, c, 0.1, **options).half()
    x = draw(rows, c, dtype=torch.float16, seed=1)
    f_out = draw(rows, c, dtype=torch.float16, seed=2) * 1
    known = {t.untyped_storage().data_ptr() for t in (x, *made.parameters())}
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in known:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = made(x, f_out)
    assert y.requires_grad
    assert 0.9 * math.floor(most) <= sum(kept.values()) / (rows * c * x.element_size()) <= most


@every
def test_second_derivatives_are_refused(name: str, options: dict[str, Any]) -> None:
    made = site(name, **options)
    x, f = draw(1, 64, seed=1), draw(1, 64, seed=2)
    with pytest.raises(RuntimeError, match=r"second derivative.*--residual-backend eager"):
        torch.autograd.grad(made(x, f).sum(), x, create_graph=True)


def test_decoding_builds_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (fused._Chain, fused._SelfAdaptiveScaling, fused._Dropout):
        monkeypatch.setattr(function, "apply", lambda *_: pytest.fail("autograd in decoding"))
    for name, options in FUSED:
        made = site(name, p=0.1, **options).eval()
        x, f = draw(1, 4, 64, seed=1), draw(1, 4, 64, seed=2)
        with torch.no_grad():
            torch.testing.assert_close(made(x, f), twin(made)(x, f))


# --- sites ---------------------------------------------------------------------------------------------------------


@every
def test_a_site_equals_its_eager_self(name: str, options: dict[str, Any]) -> None:
    made = site(name, **options)
    x, f, g = draw(2, 2, 64, seed=1), draw(2, 2, 64, seed=2), draw(2, 2, 64, seed=3).detach()
    found, expected = (
        results(lambda x, f, _, one=one: one(x, f), x, f, list(one.parameters()), g) for one in (made, twin(made))
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert made.state_dict().keys() == site(name, backend="eager", **options).state_dict().keys()


@every
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_autocast(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Under autocast a shortcut is fp32 and a branch 16-bit; what comes out is what eager PyTorch gives."""
    made = site(name, **options)
    x, g = draw(2, 64, seed=1), draw(2, 64, seed=3).detach()
    f = draw(2, 64, dtype=dtype, seed=2)
    both = []
    for one in (made, twin(made)):
        with torch.autocast(DEVICE.type, dtype=dtype):
            y = one(x, f)
        assert y.dtype == torch.float32
        both.append([y, *torch.autograd.grad(y, [x, f, *one.parameters()], g)])
    for ours, theirs in zip(*both, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


class Tripled(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return 3 * input


class Other(nn.Module):
    def forward(self, f: Tensor) -> Tensor:
        return 3 * f


@pytest.mark.parametrize("dropout", [Tripled(0.5), Other(), nn.Dropout(1.0)], ids=["subclass", "module", "p=1"])
@pytest.mark.parametrize("name", ["post_ln", "sas"])
def test_another_dropout_is_called(name: str, dropout: nn.Module) -> None:
    made = site(name)
    made.dropout = dropout
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    torch.testing.assert_close(made(x, f), twin(made)(x, f), rtol=1e-5, atol=1e-5)
    times = 0 if isinstance(dropout, nn.Dropout) and dropout.p == 1 else 3
    torch.testing.assert_close(made(x, f), made.combine(x, times * f), rtol=1e-5, atol=1e-5)


def fairseq_dropout(p: float) -> Any:
    from fairseq_resid.models.layers import SiteDropout

    return SiteDropout(p, module_name="layer")


@pytest.mark.both
@pytest.mark.parametrize("made", [nn.Dropout, fairseq_dropout])
def test_dropout_is_folded_in(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither dropout module is called; each drops when it would have, and of the channels of an F of ones a half."""
    one = site("xskip_ln", p=made(0.5))
    monkeypatch.setattr(type(one.dropout), "forward", lambda *_: pytest.fail("called"))
    with torch.no_grad():
        one.norm.weight.fill_(1.0), one.norm.bias.zero_()
    zeros, ones = torch.zeros(8, 64, device=DEVICE), torch.ones(8, 64, device=DEVICE)
    assert (one(zeros, ones) < 0).float().mean().item() == pytest.approx(0.5, abs=0.12)
    one.eval()
    assert not (one(zeros, ones) < 0).any()
    if made is fairseq_dropout:
        one.dropout.make_generation_fast_("", retain_dropout=True)
        assert (one(zeros, ones) < 0).any()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@every
def test_torchscript_compile_and_transforms_do_not_break(name: str, options: dict[str, Any]) -> None:
    made = site(name, **options)
    x, f = draw(2, 64, seed=1).detach(), draw(2, 64, seed=2).detach()
    expected = twin(made)(x, f)
    torch.testing.assert_close(torch.jit.script(made)(x, f), expected)
    torch.testing.assert_close(torch.jit.trace(made, (x, f))(x, f), expected)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, f), expected)
    torch.testing.assert_close(torch.func.vmap(made)(x, f), expected)
    torch.testing.assert_close(torch.func.jvp(made, (x, f), (x, f))[0], expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(made(dual, f)).tangent is not None


def test_activation_checkpointing_draws_the_mask_again() -> None:
    from torch.utils.checkpoint import checkpoint

    made = site("rskip_ln", p=0.5)
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    found = []
    for call in (made, lambda x, f: checkpoint(made, x, f, use_reentrant=False)):
        torch.manual_seed(8)
        y = call(x, f)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, f])])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


# --- the dispatcher ------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful() -> Any:
    """The dispatcher without what it has found out and said so far."""

    def clear() -> None:
        for remembered in (dispatch._say, dispatch._misfit):
            remembered.cache_clear()

    clear()
    yield
    clear()


@pytest.fixture
def no_interpreter(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher of a machine without GPU where nobody set TRITON_INTERPRET."""
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)


def cpu(dtype: torch.dtype = torch.float32, c: int = 64) -> tuple[Tensor, Tensor]:
    return torch.randn(2, c).to(dtype), torch.randn(2, c).to(dtype)


def test_auto_is_eager_on_a_cpu_and_says_so_once(forgetful: None, caplog: pytest.LogCaptureFixture) -> None:
    made = twin(site("rskip_ln"), "auto").cpu()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            x, f = cpu()
            assert torch.equal(made(x, f), made.combine(x, f))
    assert caplog.messages == ["residual backend: eager (the kernels are for NVIDIA GPUs)"]


def test_triton_says_so_once(forgetful: None, caplog: pytest.LogCaptureFixture) -> None:
    made = site("rskip_ln")
    with caplog.at_level(logging.INFO):
        for seed in (1, 2):
            made(draw(1, 64, seed=seed), draw(1, 64, seed=seed))
    assert caplog.messages == ["residual backend: triton"]


@pytest.mark.parametrize(
    ("dtype", "c", "reason"),
    [
        (torch.float64, 64, "float64 is not among fp32, fp16, bf16"),
        (torch.float32, 63, "C = 63 is not from 64 to 8192"),
        (torch.float32, 8193, "C = 8193 is not from 64 to 8192"),
    ],
)
def test_what_triton_does_not_serve(dtype: torch.dtype, c: int, reason: str) -> None:
    made = site("post_ln", c).to(dtype)
    x, f = (t.to(DEVICE) for t in cpu(dtype, c))
    with pytest.raises(ValueError, match=f"--residual-backend triton: {reason}"):
        made(x, f)
    expected = made.combine(x, f)
    assert torch.equal(made.eval()(x, f), expected)
    assert torch.equal(twin(made, "auto").train()(x, f), expected)


def test_a_model_trained_with_triton_decodes_on_a_cpu(no_interpreter: None, caplog: pytest.LogCaptureFixture) -> None:
    made = site("sas").cpu()
    x, f = cpu()
    with pytest.raises(ValueError, match=r"--residual-backend triton: the kernels are for NVIDIA GPUs.*on cpu"):
        made(x, f)
    with caplog.at_level(logging.INFO):
        assert torch.equal(made.eval()(x, f), made.combine(x, f))
    assert caplog.messages == ["residual backend: eager (the kernels are for NVIDIA GPUs, and the tensors are on cpu)"]


def test_shortcut_and_branch_must_be_alike() -> None:
    made = site("post_ln")
    x = draw(2, 64, seed=1)
    with pytest.raises(ValueError, match="differ in shape"):
        made(x, x[:1])
    assert made.eval()(x, x[:1]).shape == x.shape
    assert made.train()(x[:0], x[:0]).shape == (0, 64)


@pytest.mark.parametrize(
    ("capability", "dtype", "reason"),
    [
        ((6, 1), torch.float32, "float32 needs compute capability 7.0, not 6.1"),
        ((7, 0), torch.float16, ""),
        ((7, 5), torch.bfloat16, "bfloat16 needs compute capability 8.0, not 7.5"),
        ((8, 0), torch.bfloat16, ""),
        ((12, 0), torch.float32, ""),
    ],
)
def test_capabilities(
    capability: tuple[int, int], dtype: torch.dtype, reason: str, no_interpreter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(dispatch.self_check, "fault", lambda *_: "")
    assert dispatch._misfit(torch.device("cuda", 0), torch.float32, dtype, 512) == reason


def test_a_broken_triton_is_noticed_beforehand(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nmore")

    monkeypatch.setattr(fused, "_drop", fail)
    made = site("rskip_ln")
    with pytest.raises(ValueError, match=r"--residual-backend triton: triton does not run here: Failed to find C comp"):
        made(draw(2, 64, seed=1), draw(2, 64, seed=2))
    with caplog.at_level(logging.INFO):
        made.eval()(draw(2, 64, seed=1), draw(2, 64, seed=2))
    assert caplog.messages == ["residual backend: eager (triton does not run here: Failed to find C compiler.)"]


@pytest.mark.parametrize("value", [0.0, math.nan])
@pytest.mark.parametrize(
    ("kernel", "result"),
    [
        ("dropout", 1),
        ("chain_forward", 2),
        *(("chain_backward", result) for result in (4, 5, 6)),
        ("sas_forward", 3),
        *(("sas_backward", result) for result in (5, 6, 7, 8)),
    ],
)
def test_a_kernel_that_goes_wrong_is_not_used(
    kernel: str, result: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fused._kernels()

    class Spoiled:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any, **options: Any) -> None:
                getattr(right, kernel)[grid](*arguments, **options)
                arguments[result].fill_(value)

            return launch

    kernels = {name: getattr(right, name) for name in KERNELS} | {kernel: Spoiled()}
    monkeypatch.setattr(fused, "_kernels", lambda: SimpleNamespace(**kernels))
    assert "the kernels' results are wrong here, by " in self_check.fault(DEVICE, torch.float32, 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("c", [64, 100, 512, 8192])
def test_the_self_check_leaves_torch_as_it_was(c: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast(DEVICE.type, torch.bfloat16):
        assert self_check.fault(DEVICE, dtype, c) == ""
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_backends() -> None:
    with pytest.raises(ValueError, match="--residual-backend cuda: choose one of auto, eager, triton"):
        connections.build("post_ln", 64, backend="cuda")
    for name, options in (("highway", {}), ("sas", {"sas_gate": "single"}), ("sas", {"sas_gamma": "free"})):
        with pytest.raises(ValueError, match=f"--residual-backend triton: there is no kernel for --residual {name}"):
            connections.build(name, 64, backend="triton", **options)
        connections.build(name, 64, backend="auto", **options)


def test_without_triton() -> None:
    """Where triton is not installed, everything imports and auto is eager."""
    script = """
import sys
ABSENT = ("triton", "fairseq")  # the latter only because it takes seconds to import
class Filter:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Filter(finder) for finder in sys.meta_path]
import torch
from fairseq_resid import connections
x = torch.randn(2, 64)
assert connections.build("rskip_ln", 64)(x, x).shape == x.shape
assert "triton" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr


# --- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["transformer_sas_tiny", "transformer_rskip_ln_tiny"])
def test_training_with_kernels_follows_eager(arch: str) -> None:
    import argparse

    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    import fairseq_resid.models  # noqa: F401  (registers the architectures)

    words = Dictionary()
    for index in range(12):
        words.add_symbol(f"w{index}")
    task = argparse.Namespace(source_dictionary=words, target_dictionary=words)
    tokens = torch.arange(4, 10).view(2, 3).to(DEVICE)
    losses: dict[str, list[float]] = {}
    for backend in ("eager", "triton"):
        torch.manual_seed(0)
        args = argparse.Namespace(arch=arch, residual_backend=backend, dropout=0.0, encoder_layers=1, decoder_layers=1)
        ARCH_CONFIG_REGISTRY[arch](args)
        assert args.residual_backend == backend
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).to(DEVICE).train()
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        losses[backend] = []
        for _ in range(3):
            optimizer.zero_grad()
            output = model(tokens, torch.tensor([3, 3], device=DEVICE), tokens)[0]
            loss = functional.cross_entropy(output.flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            losses[backend].append(loss.item())
    assert losses["triton"] == pytest.approx(losses["eager"], rel=1e-3)
    assert losses["eager"][-1] < 0.9 * losses["eager"][0]


# --- compilation for GPUs that are not here ------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "kernels"), [("compile_kernels.py", "24"), ("launch_kernels.py", "5")])
def test_the_kernels_compile_for_gpus_and_are_launched(script: str, kernels: str, tmp_path: Path) -> None:
    """Down to machine code, by the compiler that triton ships, and up to a driver that launches nothing."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / script], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split() == [kernels]
