"""Compare the kernels with the eager formulas, on the device, in the dtypes and at the width of their first use.

dispatch.py does this once for each combination of kernel, device, dtypes and width, so that a driver, compiler or GPU
that breaks the kernels costs speed instead of ruining a training run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from . import fused
from .gates import scaling_gate
from .recursive import recursive_layer_norm
from .sas import self_adaptive_scaling

P, SEED, EPS = 0.25, 7, 1e-5
# The maximum numbers of rows and elements. A backward pass launches at most as many programs as a GPU runs at once.
# There must be more rows than that.
GPU_ROWS, GPU_ELEMENTS, INTERPRETED_ROWS = 4099, 1 << 22, 3
# The largest error that passes, relative to the largest value of a result. Rounding to 16 bits gives an error of 0.01,
# and a bug gives one of about 1.
TOLERANCE = 0.05

Function = Callable[..., Tensor]


class Kind(NamedTuple):
    """One way to use the kernels: the kernel, its number of norms, and the device, dtypes and width of the tensors.

    kernel: chain; weighted_chain, whose λ is a vector; branch_norm: x + LN(F); or sas
    """

    kernel: str
    norms: int
    device: torch.device
    x_dtype: torch.dtype
    f_dtype: torch.dtype
    autocast: torch.dtype | None
    channels: int


def _results(function: Function, inputs: Sequence[Tensor], gradient: Tensor | None) -> list[Tensor]:
    """Return y and, if the gradient of y is given, the gradients of the inputs, all in fp32."""
    if gradient is None:
        with torch.no_grad():
            return [function(*inputs).float()]
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    y = function(*inputs)
    return [tensor.detach().float() for tensor in (y, *torch.autograd.grad(y, inputs, gradient.to(y.dtype)))]


def _functions(kernel: str) -> tuple[Function, Function]:
    """Return the eager formula of a kernel, which takes a dropout mask in place of p, and the kernel itself."""

    def chain(mask: Tensor, x: Tensor, f: Tensor, *norms: Tensor) -> Tensor:
        return recursive_layer_norm(x, f * mask, list(norms[::2]), list(norms[1::2]), EPS)

    def fused_chain(p: float, x: Tensor, f: Tensor, *norms: Tensor) -> Tensor:
        return fused.fused_recursive_layer_norm(x, f, norms[::2], norms[1::2], EPS, p, seed=SEED)

    def weighted_chain(mask: Tensor, x: Tensor, f: Tensor, weight: Tensor, *norms: Tensor) -> Tensor:
        return chain(mask, weight * x, f, *norms)

    def fused_weighted_chain(p: float, x: Tensor, f: Tensor, weight: Tensor, *norms: Tensor) -> Tensor:
        return fused.fused_recursive_layer_norm(x, f, norms[::2], norms[1::2], EPS, p, weight, seed=SEED)

    def branch_norm(mask: Tensor, x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x + functional.layer_norm(f * mask, weight.shape, weight, bias, EPS)

    def fused_branch_norm(p: float, x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fused.fused_branch_layer_norm(x, f, weight, bias, EPS, p, seed=SEED)

    def sas(mask: Tensor, x: Tensor, f: Tensor, *parameters: Tensor) -> Tensor:
        w, b, v, c, weight, bias = parameters
        f = f * mask
        alpha, beta = torch.sigmoid(scaling_gate(x, f, w, b, v, c)).chunk(2, dim=-1)
        return self_adaptive_scaling(x, f, alpha, beta, (1 - alpha) * (1 - beta), weight, bias, EPS)

    def fused_sas(p: float, x: Tensor, f: Tensor, *parameters: Tensor) -> Tensor:
        w, b, v, c, weight, bias = parameters
        return fused.fused_self_adaptive_scaling(x, f, w, b, v, c, weight, bias, EPS, p, seed=SEED)

    functions: dict[str, tuple[Function, Function]] = {
        "chain": (chain, fused_chain),
        "weighted_chain": (weighted_chain, fused_weighted_chain),
        "branch_norm": (branch_norm, fused_branch_norm),
        "sas": (sas, fused_sas),
    }
    return functions[kernel]


def _largest_error(kind: Kind) -> float:
    """Return the largest error, with and without dropout, in training (which saves statistics) and in inference."""
    channels, device = kind.channels, kind.device
    rows = min(GPU_ROWS, GPU_ELEMENTS // channels) if device.type == "cuda" else INTERPRETED_ROWS
    generator = torch.Generator().manual_seed(SEED)

    def draw(*shape: int, dtype: torch.dtype = kind.x_dtype, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float32) * scale + shift
        return values.to(device, dtype)

    x, f, gradient = draw(rows, channels), draw(rows, channels, dtype=kind.f_dtype), draw(rows, channels)
    # Long chains are split. The check runs one full-length part and the remainder, so that gradients do not vanish in
    # 16 bits.
    count = (kind.norms - 1) % fused.MAX_NORMS + 1 + fused.MAX_NORMS * (kind.norms > fused.MAX_NORMS)
    norms = [draw(channels, scale=0.3, shift=float(k % 2 == 0)) for k in range(2 * count)]
    steep = channels**-0.5
    others: dict[str, list[tuple[tuple[int, ...], float]]] = {
        "sas": [((2 * channels, 2 * channels), steep), ((2 * channels,), 1.0), ((2, channels), steep), ((2,), 1.0)],
        "weighted_chain": [((channels,), 1.0)],
    }
    parameters = [*(draw(*shape, scale=scale) for shape, scale in others.get(kind.kernel, [])), *norms]
    formula, kernel = _functions(kind.kernel)
    errors = []
    for p in (P, 0.0):
        mask = fused.dropout_mask((rows, channels), p, SEED, device) / (1 - p)
        errors.append((mask.mean() - 1).abs() / 4)  # not exact: the mask has few elements in the interpreter
        for wanted in (gradient, None):
            exact = [tensor.float() for tensor in (x, f, *parameters)]
            expected = _results(lambda *given, mask=mask: formula(mask, *given), exact, wanted)
            with torch.autocast(device.type, kind.autocast, enabled=kind.autocast is not None):
                found = _results(lambda *given, p=p: kernel(p, *given), [x, f, *parameters], wanted)
            errors += [
                (one - right).abs().max() / right.abs().max() for one, right in zip(found, expected, strict=True)
            ]
    return float(torch.stack(errors).max())


def fault(kind: Kind) -> str:
    """Return how the kernels fail on tensors of this kind; an empty string if they agree with eager PyTorch.

    The check does not use torch's default generators. It runs in a separate thread, so that the caller's autocast,
    inference mode, saved-tensor hooks and transforms do not apply.
    """

    def check() -> tuple[float, bool]:
        on_device = torch.cuda.device(kind.device) if kind.device.type == "cuda" else nullcontext()
        with on_device, fused.used_kernels() as used:
            return _largest_error(kind), any(one.spills for one in used.values())

    try:
        with ThreadPoolExecutor(1) as own_thread:
            error, spills = own_thread.submit(check).result()
    except Exception as failure:  # no C compiler, a wrong driver, a broken installation: the exceptions differ
        return f"triton does not run: {(str(failure).strip() or repr(failure)).splitlines()[0]}"
    if spills:
        return f"C = {kind.channels}: the compiled kernels spill registers on this device"
    return "" if error <= TOLERANCE else f"the kernels are wrong on this device: relative error {error:.2g}"
