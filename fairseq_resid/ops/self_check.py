"""Compare the kernels with the eager formulas on small tensors, on the device and in the dtype of their first use.

dispatch.py does this once for each kind of tensor, so that a driver, compiler or GPU that breaks the kernels costs
speed instead of ruining a training run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from .fused import dropout_mask, fused_recursive_layer_norm, fused_self_adaptive_scaling
from .gates import scaling_gate
from .recursive import recursive_layer_norm
from .sas import self_adaptive_scaling

ROWS, MOST_CHANNELS, P, SEED, EPS = 16, 1024, 0.25, 7, 1e-5
# Relative to the largest value of a result. Rounding to 16 bits gives an error of 0.01, a bug one of about 1.
TOLERANCE = 0.05


def _results(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Return y and its gradients in fp32, for inputs converted to a dtype."""
    inputs = [tensor.to(dtype, copy=True).requires_grad_() for tensor in inputs]
    y = function(*inputs)
    return [tensor.detach().float() for tensor in (y, *torch.autograd.grad(y, inputs, gradient.to(y.dtype)))]


def _largest_error(device: torch.device, dtype: torch.dtype, channels: int) -> float:
    generator = torch.Generator().manual_seed(SEED)

    def draw(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float32) * scale + shift
        return values.to(device, dtype)

    x, f, gradient = (draw(ROWS, channels) for _ in range(3))
    norms = [draw(channels, scale=0.3, shift=shift) for shift in (1.0, 0.0, 1.0, 0.0)]
    steep = channels**-0.5
    gates = [draw(2 * channels, 2 * channels, scale=steep), draw(2 * channels), draw(2, channels, scale=steep), draw(2)]
    mask = dropout_mask((ROWS, channels), P, SEED, device)

    def chain(x: Tensor, f: Tensor, *norms: Tensor) -> Tensor:
        return recursive_layer_norm(x, f * mask / (1 - P), list(norms[::2]), list(norms[1::2]), EPS)

    def fused_chain(x: Tensor, f: Tensor, *norms: Tensor) -> Tensor:
        return fused_recursive_layer_norm(x, f, norms[::2], norms[1::2], EPS, P, seed=SEED)

    def sas(x: Tensor, f: Tensor, *parameters: Tensor) -> Tensor:
        w, b, v, c, weight, bias = parameters
        f = f * mask / (1 - P)
        alpha, beta = torch.sigmoid(scaling_gate(x, f, w, b, v, c)).chunk(2, dim=-1)
        return self_adaptive_scaling(x, f, alpha, beta, (1 - alpha) * (1 - beta), weight, bias, EPS)

    def fused_sas(x: Tensor, f: Tensor, *parameters: Tensor) -> Tensor:
        w, b, v, c, weight, bias = parameters
        return fused_self_adaptive_scaling(x, f, w, b, v, c, weight, bias, EPS, P, seed=SEED)

    errors = [(mask.mean() - (1 - P)).abs()]
    for ours, eager, parameters in ((fused_chain, chain, norms), (fused_sas, sas, [*gates, *norms[:2]])):
        inputs = [x, f, *parameters]
        expected = _results(eager, inputs, gradient, torch.float32)
        for _ in range(2):  # the second launch of a kernel takes a different path
            found = _results(ours, inputs, gradient, dtype)
            errors += [
                (one - right).abs().max() / right.abs().max() for one, right in zip(found, expected, strict=True)
            ]
    return float(torch.stack(errors).max())


def fault(device: torch.device, dtype: torch.dtype, channels: int) -> str:
    """Return how the kernels fail on tensors of this kind; an empty string if they agree with eager PyTorch.

    This does not use torch's default generators. It runs in a separate thread, so that the caller's autocast,
    inference mode, saved-tensor hooks and transforms do not apply.
    """

    def check() -> float:
        # Triton launches on the current device.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return _largest_error(device, dtype, min(channels, MOST_CHANNELS))

    try:
        with ThreadPoolExecutor(1) as own_thread:
            error = own_thread.submit(check).result()
    except Exception as failure:  # no C compiler, a wrong driver, a broken installation: the exceptions differ
        return f"triton does not run: {(str(failure).strip() or repr(failure)).splitlines()[0]}"
    return "" if error <= TOLERANCE else f"the kernels are wrong on this device, by {error:.2g} of the largest value"
