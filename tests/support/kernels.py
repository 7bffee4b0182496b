"""Kernels and their formulas in fp64, on a GPU if there is one, otherwise in Triton's interpreter."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fairseq_resid import connections, ops

if sys.platform != "linux":
    pytest.skip("triton has no build for this system", allow_module_level=True)

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
EPS = 1e-5
BUDGET = Path(__file__).with_name("kernel_budget.py")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
if DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 0):
    DTYPES.remove(torch.bfloat16)

Tensors = list[Tensor]


def compiled(script: Path, cache: Path, *flags: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script in a process in which Triton compiles instead of interpreting."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, script, *flags], capture_output=True, text=True, env=environment)
    assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done


def norm(s: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = s - s.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * weight + bias


def chain(x: Tensor, f: Tensor, parameters: Tensors, lam: float = 1.0, mu: float = 1.0) -> Tensor:
    y = mu * f
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        y = norm(lam * x + y, weight, bias)
    return y


def weighted_chain(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    return chain(parameters[0] * x, f, parameters[1:])


def branch_norm(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    return x + norm(f, *parameters)


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


def fused_weighted_chain(x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, **given: Any) -> Tensor:
    return fused_chain(x, f, parameters[1:], p, x_scale=parameters[0], **given)


def fused_branch_norm(x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, **given: Any) -> Tensor:
    return ops.fused_branch_layer_norm(x, f, *parameters, EPS, p, **given)  # type: ignore[misc]


def fused_sas(x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, **given: Any) -> Tensor:
    return ops.fused_self_adaptive_scaling(x, f, *parameters, EPS, p, **given)  # type: ignore[misc]


def eager_chain(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    return ops.recursive_layer_norm(x, f, parameters[::2], parameters[1::2], EPS)


def eager_weighted_chain(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    return eager_chain(parameters[0] * x, f, parameters[1:])


def eager_branch_norm(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    return x + eager_chain(torch.zeros_like(f), f, parameters)


def eager_sas(x: Tensor, f: Tensor, parameters: Tensors) -> Tensor:
    alpha, beta = torch.sigmoid(ops.scaling_gate(x, f, *parameters[:4])).chunk(2, dim=-1)
    return ops.self_adaptive_scaling(x, f, alpha, beta, (1 - alpha) * (1 - beta), *parameters[4:], EPS)


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, shift: float = 0.0, seed: int) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + shift
    return values.to(DEVICE, dtype).requires_grad_()


def chain_parameters(c: int, norms: int, dtype: torch.dtype = torch.float32) -> Tensors:
    return [draw(c, dtype=dtype, scale=0.3, shift=1 - i % 2, seed=10 + i) for i in range(2 * norms)]


def weighted_chain_parameters(c: int, norms: int, dtype: torch.dtype = torch.float32) -> Tensors:
    return [draw(c, dtype=dtype, seed=50), *chain_parameters(c, norms, dtype)]


def sas_parameters(c: int, dtype: torch.dtype = torch.float32) -> Tensors:
    shapes = [(2 * c, 2 * c), (2 * c,), (2, c), (2,), (c,), (c,)]
    scales = [1 / math.sqrt(c), 0.3, 1 / math.sqrt(c), 0.5, 0.3, 0.3]
    return [
        draw(*shape, dtype=dtype, scale=scale, shift=float(i == 4), seed=30 + i)
        for i, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
    ]


class Kernel(NamedTuple):
    """A kernel by its name in self_check.Kind, its formula in fp64 and in eager PyTorch, and its parameters."""

    fused: Any
    formula: Any
    eager: Any
    parameters: Any  # of C and a dtype


KERNELS = {
    "chain": Kernel(fused_chain, chain, eager_chain, lambda c, *dtype: chain_parameters(c, 2, *dtype)),
    "weighted_chain": Kernel(
        fused_weighted_chain, weighted_chain, eager_weighted_chain,
        lambda c, *dtype: weighted_chain_parameters(c, 1, *dtype),
    ),
    "branch_norm": Kernel(
        fused_branch_norm, branch_norm, eager_branch_norm, lambda c, *dtype: chain_parameters(c, 1, *dtype)
    ),
    "sas": Kernel(fused_sas, sas, eager_sas, sas_parameters),
}  # fmt: skip
each_kernel = pytest.mark.parametrize("kind", KERNELS)


def results(function: Any, x: Tensor, f: Tensor, parameters: Tensors, g: Tensor, **given: Any) -> Tensors:
    """Return y and all its gradients."""
    y = function(x, f, parameters, **given)
    return [y, *torch.autograd.grad(y, [x, f, *parameters], g.to(y.dtype))]


def in_double(*tensors: Tensor) -> Tensors:
    return [t.detach().double().requires_grad_() for t in tensors]


def check(
    kind: str, x: Tensor, f: Tensor, parameters: Tensors, p: float = 0.0, slack: float = 1.0, **scales: float
) -> None:
    """Compare y and all gradients with fp64: up to rounding in fp32, or twice the error of eager PyTorch in 16 bits.

    All use the same dropout mask.
    """
    kernel, reference, eager, _ = KERNELS[kind]
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
    ("wskip_ln", {"wskip_init": 2.0}),
    ("sandwich_ln", {}),
    ("res_post_norm", {}),
    ("sas", {"sas_alpha_bias": 0.5}),
]
every = pytest.mark.parametrize(("name", "options"), FUSED, ids=[f"{n}-{o.get('skip_lambda', '')}" for n, o in FUSED])
