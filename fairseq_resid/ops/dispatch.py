"""Selects the backend of a residual structure: eager PyTorch or the fused Triton kernels."""

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
# The offset of a row's statistics has 32 bits, and a row has up to 8 statistics.
MOST_ROWS = 1 << 28
DTYPES = {torch.float32: (7, 0), torch.float16: (7, 0), torch.bfloat16: (8, 0)}  # minimum compute capability

logger = logging.getLogger(__name__)
# TRITON_INTERPRET is read once, at import, just as Triton reads it once, when it defines the kernels. Tests set it to
# 1, so that the kernels run on the CPU, slowly.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _say(text: str) -> None:
    """Log a message once per process."""
    logger.info(text)


@functools.cache
def _misfit(kind: self_check.Kind) -> str:
    """Return why the kernels do not support tensors of this kind; an empty string if they do."""
    device, channels = kind.device, kind.channels
    for dtype in (kind.x_dtype, kind.f_dtype):
        if dtype not in DTYPES:
            return f"dtype {str(dtype).removeprefix('torch.')}: must be float32, float16 or bfloat16"
    if not FEWEST_CHANNELS <= channels <= MOST_CHANNELS:
        return f"C = {channels}: must be from {FEWEST_CHANNELS} to {MOST_CHANNELS}"
    if device.type == "cpu" and _INTERPRETED:
        return self_check.fault(kind)
    if device.type != "cuda":
        return f"the kernels need a GPU, but the tensors are on {device.type}"
    if _INTERPRETED:
        return "TRITON_INTERPRET=1: the interpreter is used only for tensors on the CPU"
    capability = torch.cuda.get_device_capability(device)
    for dtype in (kind.x_dtype, kind.f_dtype):
        if capability < DTYPES[dtype]:
            shown = ".".join(map(str, capability))
            return f"{str(dtype).removeprefix('torch.')} needs compute capability {DTYPES[dtype][0]}.0, not {shown}"
    return self_check.fault(kind)


def _obstacle(x: Tensor, f: Tensor, kernel: tuple[str, int]) -> str:
    """Return why the kernels do not support this call; an empty string if they do."""
    if type(x) not in PLAIN or type(f) not in PLAIN:
        return f"tensors of class {(type(x) if type(f) in PLAIN else type(f)).__name__} are not supported"
    if x.shape != f.shape or x.device != f.device:
        return "shortcut and branch differ in shape or device"
    if x.numel() > MOST_ROWS * x.size(-1):
        return f"more than {MOST_ROWS} rows"
    device = x.device
    autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    return _misfit(self_check.Kind(*kernel, device, x.dtype, f.dtype, autocast, x.size(-1)))


def absence(on_cpu: bool) -> str:
    """Return why no kernel can run in this process; an empty string if one can.

    on_cpu: whether the process will use only the CPU
    """
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return "" if _INTERPRETED or (torch.cuda.is_available() and not on_cpu) else "no GPU is in use"


def is_traced(x: Tensor) -> bool:
    """Return whether PyTorch records or transforms the operations, which it cannot do inside a kernel.

    This is the case under tracing, functorch, forward-mode AD and CUDA graph capture. Replays of a captured kernel
    would drop the same elements each time, because the seed is an argument of the launch.
    """
    return (
        torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def use_kernels(backend: str, training: bool, x: Tensor, f: Tensor, kernel: tuple[str, int] = ("chain", 1)) -> bool:
    """Decide whether the kernels compute a site, and log each decision and its reason once per process.

    `auto` uses the kernels wherever they are supported on a GPU; `eager` never uses them. `triton` uses them wherever
    they are supported; elsewhere it raises an error in training and falls back to eager in inference, so that a model
    trained on a GPU can be decoded anywhere. A site that PyTorch traces (torch.compile, torch.jit, torch.func,
    forward-mode AD, CUDA graphs) runs eagerly, with every backend. `kernel` is the name of a kernel (self_check.Kind)
    and its number of norms. Each combination of kernel, device, dtypes and width is checked
    once, before it is first used.

    Raises:   ValueError naming the reason if `triton` is not supported in training.
    """
    if backend == "eager" or torch.compiler.is_compiling():
        return False
    if backend == "auto" and not x.is_cuda:
        _say("residual backend: eager (the kernels need a GPU)")
        return False
    if is_traced(x) or not x.numel():
        return False
    reason = _obstacle(x, f, kernel)
    if not reason:
        _say("residual backend: triton")
        return True
    if backend == "triton" and training:
        raise ValueError(f"residual backend triton: {reason}; use auto or eager")
    _say(f"residual backend: eager ({reason})")
    return False
