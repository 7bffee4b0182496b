"""Which backend computes a residual structure: eager PyTorch, or the fused Triton kernels."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from . import self_check

PLAIN = (Tensor, Parameter)
BACKENDS = ("auto", "eager", "triton")
FEWEST_CHANNELS, MOST_CHANNELS = 64, 8192
# A row's statistics are found by an offset of 32 bits, 8 numbers to a row.
MOST_ROWS = 1 << 28
DTYPES = {torch.float32: (7, 0), torch.float16: (7, 0), torch.bfloat16: (8, 0)}  # and the capability each one needs

logger = logging.getLogger(__name__)
# Read once, as Triton does when the kernels are defined: with it they run on the CPU, slowly, to be tested.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _say(text: str) -> None:
    """Log a line once per process."""
    logger.info(text)


@functools.cache
def _misfit(device: torch.device, x_dtype: torch.dtype, f_dtype: torch.dtype, channels: int) -> str:
    """Return why the kernels do not serve tensors of this kind; the empty string if they do."""
    for dtype in (x_dtype, f_dtype):
        if dtype not in DTYPES:
            return f"{str(dtype).removeprefix('torch.')} is not among fp32, fp16, bf16"
    if not FEWEST_CHANNELS <= channels <= MOST_CHANNELS:
        return f"C = {channels} is not from {FEWEST_CHANNELS} to {MOST_CHANNELS}"
    if device.type == "cpu" and _INTERPRETED:
        return self_check.fault(device, x_dtype, channels)
    if device.type != "cuda" or torch.version.hip is not None:
        return f"the kernels are for NVIDIA GPUs, and the tensors are on {device.type}"
    if _INTERPRETED:
        return "TRITON_INTERPRET=1 interprets the kernels"
    capability = torch.cuda.get_device_capability(device)
    for dtype in (x_dtype, f_dtype):
        if capability < DTYPES[dtype]:
            shown = ".".join(map(str, capability))
            return f"{str(dtype).removeprefix('torch.')} needs compute capability {DTYPES[dtype][0]}.0, not {shown}"
    return self_check.fault(device, x_dtype, channels)


def _obstacle(x: Tensor, f: Tensor) -> str:
    """Return why the kernels do not serve this call; the empty string if they do."""
    if type(x) not in PLAIN or type(f) not in PLAIN:
        return f"the tensors are of the class {(type(x) if type(f) in PLAIN else type(f)).__name__}"
    if x.shape != f.shape or x.device != f.device:
        return "shortcut and branch differ in shape or device"
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return "the tensors are not on the current CUDA device"
    if x.numel() > MOST_ROWS * x.size(-1):
        return f"more than {MOST_ROWS} rows"
    return _misfit(x.device, x.dtype, f.dtype, x.size(-1))


def absence(on_cpu: bool) -> str:
    """Return why no kernel can run in this process at all, `on_cpu` or not; the empty string if one may."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return "" if _INTERPRETED or (torch.cuda.is_available() and not on_cpu) else "no NVIDIA GPU is used here"


def is_traced(x: Tensor) -> bool:
    """Return whether PyTorch records or transforms the operations, which it cannot do inside a kernel.

    True under tracing, functorch, forward-mode AD and CUDA graph capture. Replays of a captured kernel would drop the
    same elements each time, because the seed is an argument of the launch.
    """
    return (
        torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def use_kernels(backend: str, training: bool, x: Tensor, f: Tensor) -> bool:
    """Decide whether the kernels compute a site, and say once per process what was decided, and why.

    `auto` takes the kernels wherever they serve, but for Triton's interpreter; `eager` never. `triton` insists on them
    in training; elsewhere it falls back, so that what was trained on a GPU is decoded anywhere. What PyTorch traces
    (torch.compile, torch.jit, torch.func, forward-mode derivatives, CUDA graphs) is always eager.

    Raises:   ValueError if `triton` is asked for in training and cannot serve, naming the reason
    """
    if backend == "eager" or torch.compiler.is_compiling():
        return False
    if backend == "auto" and not x.is_cuda:
        _say("residual backend: eager (the kernels are for NVIDIA GPUs)")
        return False
    if is_traced(x) or not x.numel():
        return False
    reason = _obstacle(x, f)
    if not reason:
        _say("residual backend: triton")
        return True
    if backend == "triton" and training:
        raise ValueError(f"--residual-backend triton: {reason}; use --residual-backend auto")
    _say(f"residual backend: eager ({reason})")
    return False
