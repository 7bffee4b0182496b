"""The residual structures with one Triton kernel for the forward and one for the backward pass.

The backward pass needs x, F, the fp32 statistics of each row, the dropout seed and, for Self-Adaptive Scaling, the
gates' hidden layer H. It recomputes everything else. Rows are summed in a fixed order, so that results are
deterministic.

The kernels do not add the sublayer's bias, because its GEMM adds it at no cost.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import occupancy

# The maximum number of norms in one kernel; longer chains are split.
MAX_NORMS = 4
# Dropout compares 16-bit random numbers, so its probability is a multiple of 2^-16.
RANDOM_RANGE = 1 << 16
# The number of channels per warp. A thread has 16 channels in the forward pass and 8 in the backward pass, where each
# channel also needs two sums per norm in registers.
FORWARD_LANES = 512
BACKWARD_LANES = 256
MAX_WARPS = 16
# The number of rows that a backward program loads ahead, plus one. With 1, it loads none ahead; with 2, it loads the
# next row through shared memory.
BACKWARD_STAGES = 1
# The number of programs that a backward kernel uses in Triton's interpreter.
INTERPRETED_PROGRAMS = 2

NO_SECOND_DERIVATIVE = (
    "create_graph=True: the fused residual kernels have no second derivative; use --residual-backend eager"
)


@functools.cache
def _kernels() -> Any:
    """Return the module of kernels; importing it needs triton."""
    from . import kernels

    return kernels


class _Compiled:
    """A kernel that Triton has compiled for one combination of argument types, or that its interpreter runs."""

    def __init__(self, name: str, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        self.name, self.kernel, self.options = name, getattr(_kernels(), name), options
        self.spills = 0
        self.compiled: Any = None  # None in the interpreter
        if not isinstance(self.kernel, _kernels().triton.JITFunction):
            return
        self.compiled = self.kernel.warmup(*arguments, grid=(1,), **options)
        self.compiled._init_handles()
        self.spills = self.compiled.n_spills
        self.limits = occupancy.limits(arguments[1].device)
        self.at_once = self.limits.programs_at_once(
            self.compiled.n_regs, options["num_warps"], self.compiled.metadata.shared
        )
        # Triton 3.1's launcher takes no constants, and 3.7's takes all of them. The signature shows which one it is.
        takes_all = len(self.compiled.src.signature) == len(self.kernel.arg_names)
        constants = [options[name] for name in self.kernel.arg_names[len(arguments) :]]
        self.constants = constants if takes_all else []

    def programs(self, rows: int, sums: int) -> int:
        """Return the number of programs that share the rows if each writes this many sums in fp32."""
        if self.compiled is None:
            return min(INTERPRETED_PROGRAMS, rows)
        return self.limits.programs(rows, self.at_once, 4 * sums)

    def launch(self, programs: int, *arguments: Any) -> None:
        if self.compiled is None:
            self.kernel[(programs,)](*arguments, **self.options)
        else:
            self.compiled[programs, 1, 1](*arguments, *self.constants)


_compiled: dict[tuple[Any, ...], _Compiled] = {}  # by kind (see _launch)
_watch = threading.Lock()


@contextmanager
def used_kernels() -> Iterator[dict[tuple[Any, ...], _Compiled]]:
    """Collect the kernels that are launched in this context, whether or not they were compiled before.

    Launches from all threads count, because autograd runs the backward pass in threads of its own.
    """
    global _compiled
    used: dict[tuple[Any, ...], _Compiled] = {}
    with _watch:
        known, _compiled = _compiled, used
        try:
            yield used
        finally:
            known.update(used)
            _compiled = known


def _launch(name: str, rows: int, *arguments: Any, sums: int = 0, **options: Any) -> Tensor | None:
    """Launch a kernel with one program per row; `options` are its constants and num_warps.

    With `sums`, fewer programs share the rows. Each writes that many sums in fp32 to a buffer, which is the kernel's
    first argument, and the function returns their total over all programs.

    Compiled kernels are cached by the kind of their arguments, because Triton's own lookup takes most of the host's
    time. Triton compiles a kernel once for each kind. The kind depends on the types of all arguments and on whether
    addresses are multiples of 16, but not on the values of numbers (do_not_specialize).
    """
    device = arguments[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):  # Triton launches on the current device
            return _launch(name, rows, *arguments, sums=sums, **options)
    kind: list[Any] = [name, device, *options.values()]
    for argument in arguments:
        if isinstance(argument, Tensor):
            kind.append(argument.dtype)
            kind.append(argument.data_ptr() % 16 == 0)
        else:
            kind.append(type(argument))
    key = tuple(kind)
    found = _compiled.get(key)
    if found is None:
        buffer = [torch.empty(0, dtype=torch.float32, device=device)] if sums else []
        found = _compiled[key] = _Compiled(name, [*buffer, *arguments], options)
    if not sums:
        found.launch(rows, *arguments)
        return None
    programs = found.programs(rows, sums)
    partial = torch.empty(programs, sums, dtype=torch.float32, device=device)
    found.launch(programs, partial, *arguments)
    return partial.sum(0)


@functools.cache
def _shape(channels: int, lanes: int) -> dict[str, int]:
    """Return the launch options of a kernel for rows of `channels` channels, with `lanes` channels per warp."""
    block = 1 << (channels - 1).bit_length()
    return {"C": channels, "BLOCK": block, "num_warps": min(max(block // lanes, 1), MAX_WARPS)}


def _result_dtype(x: Tensor, f: Tensor) -> torch.dtype:
    """Return the dtype of a norm's output in eager PyTorch.

    It is fp32 under autocast, and otherwise the promoted dtype of the two inputs.
    """
    if torch.is_autocast_enabled(x.device.type):
        return torch.float32
    return x.dtype if x.dtype == f.dtype else torch.promote_types(x.dtype, f.dtype)


def _seed() -> int:
    """Draw a seed from torch's generator, so that torch.manual_seed and activation checkpointing reproduce the mask."""
    return int(torch.randint(0x7FFFFFFF, (), device="cpu"))


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(NO_SECOND_DERIVATIVE)


def _records(tensors: tuple[Tensor | None, ...]) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def dropout_mask(shape: tuple[int, ...], p: float, seed: int, device: torch.device) -> Tensor:
    """Return the dropout mask (0 and 1 in fp32) that the kernels draw from a seed for a tensor of this shape.

    Source:   Philox with the counter (channel // 8, row) and the seed, from 0 to 2^31 - 1, as key; p is rounded to a
              multiple of 2^-16
    """
    ones = torch.ones(shape, device=device)
    _drop(ones, ones, p, seed, 1.0)
    return ones


def _drop(f: Tensor, out: Tensor, p: float, seed: int, scale: float) -> None:
    channels = f.size(-1)
    _launch(
        "dropout", f.numel() // channels, f, out, scale, seed, round(p * RANDOM_RANGE),
        **_shape(channels, FORWARD_LANES),
    )  # fmt: skip


# --- recursive LayerNorm -------------------------------------------------------------------------------------------


def _chain_forward(
    x: Tensor,
    f: Tensor,
    x_weight: Tensor | None,
    norms: tuple[Tensor, ...],
    eps: float,
    scales: tuple[float, float],
    p: float,
    seed: int,
    outside: bool,
    save: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return y and, with `save`, the statistics; x and f are contiguous, and `norms` is (w_1, b_1, w_2, ...)."""
    channels = x.size(-1)
    rows = x.numel() // channels
    y = torch.empty_like(x, dtype=_result_dtype(x, f))
    stats = torch.empty(rows * len(norms), dtype=torch.float32, device=x.device) if save else None
    _launch(
        "chain_forward", rows, x, f, y, stats, x_weight,
        *norms, *(None,) * (2 * MAX_NORMS - len(norms)),
        scales[0], scales[1] / (1.0 - p), eps, seed, round(p * RANDOM_RANGE),
        NORMS=len(norms) // 2, WEIGHTED=x_weight is not None, OUTSIDE=outside, DROPOUT=p > 0, SAVE=save,
        **_shape(channels, FORWARD_LANES),
    )  # fmt: skip
    return y, stats


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, f: Tensor, eps: float, scales: tuple[float, float], p: float, seed: int, outside: bool,
        x_weight: Tensor | None, *norms: Tensor,
    ) -> Tensor:  # fmt: skip
        y, stats = _chain_forward(x, f, x_weight, norms, eps, scales, p, seed, outside, True)
        ctx.save_for_backward(None if outside else x, f, stats, x_weight, *norms)
        ctx.scales, ctx.p, ctx.seed, ctx.outside = scales, p, seed, outside
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _refuse_second_derivative()
        x, f, stats, x_weight, *norms = ctx.saved_tensors
        channels = f.size(-1)
        rows = f.numel() // channels
        is_weighted = x_weight is not None
        sums = len(norms) + is_weighted
        options = {"STAGES": BACKWARD_STAGES, **_shape(channels, BACKWARD_LANES)}
        dx, df = None if ctx.outside else torch.empty_like(x), torch.empty_like(f)
        total = _launch(
            "chain_backward", rows, g.contiguous(), x, f, stats, dx, df, x_weight,
            *norms[:-1], *(None,) * (2 * MAX_NORMS - len(norms)),
            ctx.scales[0], ctx.scales[1] / (1.0 - ctx.p), ctx.seed, round(ctx.p * RANDOM_RANGE), rows,
            sums=sums * channels, NORMS=len(norms) // 2, WEIGHTED=is_weighted, OUTSIDE=ctx.outside,
            DROPOUT=ctx.p > 0, **options,
        )  # fmt: skip
        assert total is not None
        gradients = list(total.view(sums, channels).to(norms[0].dtype).unbind())
        dx_weight = gradients.pop() if is_weighted else None
        # With `outside`, dx is g; autograd converts it to the dtype of x.
        return g if dx is None else dx, df, None, None, None, None, None, dx_weight, *gradients


def _chain(
    x: Tensor,
    f: Tensor,
    x_scale: float | Tensor,
    norms: tuple[Tensor, ...],
    eps: float,
    f_scale: float,
    p: float,
    seed: int,
    outside: bool = False,
) -> Tensor:
    """Return y after up to MAX_NORMS norms or, with `outside`, x + LN(F)."""
    x_weight, number = (x_scale, 1.0) if isinstance(x_scale, Tensor) else (None, x_scale)
    scales = (number, f_scale)
    if _records((x, f, x_weight, *norms)):
        return _Chain.apply(x, f, eps, scales, p, seed, outside, x_weight, *norms)
    return _chain_forward(x, f, x_weight, norms, eps, scales, p, seed, outside, False)[0]


def fused_recursive_layer_norm(
    x: Tensor,
    f: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    eps: float,
    p: float = 0.0,
    x_scale: float | Tensor = 1.0,
    f_scale: float = 1.0,
    seed: int | None = None,
) -> Tensor:
    """Apply dropout and then, once per norm, add the shortcut and normalise.

    One kernel computes up to MAX_NORMS norms in a forward or backward pass.

    Formula:  F = D ⊙ f / (1 - p);  y_1 = LN_1(λ ⊙ x + μF);  y_k = LN_k(λ ⊙ x + y_{k-1}), k = 2..;
              λ = x_scale, a number or a vector with a gradient; μ = f_scale
    Source:   rSkip paper, eq. 4 (λ = μ = 1); one norm: eq. 3, and with λ = μ = 1 Vaswani 2017's LN(x + F); one norm and
              a vector λ: section 4.3, and Admin
    Shapes:   x, f: (..., C) -> (..., C), 1 <= C; each weight and bias, and a vector λ: (C,)
    Dtype:    fp16 / bf16 / fp32 in, the promoted dtype of x and f out, or fp32 under autocast; computed in fp32
    Args:     p: dropout probability, below 1; seed: of its mask (dropout_mask), 0 to 2^31 - 1; by default drawn from
              torch's generator
    Raises:   RuntimeError in a backward pass with create_graph=True
    """
    if p > 0 and seed is None:
        seed = _seed()
    x, f = x.contiguous(), f.contiguous()
    y = f
    for start in range(0, len(weights), MAX_NORMS):
        end = start + MAX_NORMS
        norms = tuple(one for pair in zip(weights[start:end], biases[start:end], strict=True) for one in pair)
        of_branch = (f_scale, p, seed or 0) if start == 0 else (1.0, 0.0, 0)
        y = _chain(x, y, x_scale, norms, eps, *of_branch)
    return y


def fused_branch_layer_norm(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor, eps: float, p: float = 0.0, seed: int | None = None
) -> Tensor:
    """Apply dropout, normalise the branch and add the shortcut, with one kernel for each pass.

    Formula:  F = D ⊙ f / (1 - p);  y = x + LN(F)
    Source:   OLMo 2, 2024; Ding 2021, CogView
    Shapes:   x, f: (..., C) -> (..., C), 1 <= C; weight, bias: (C,)
    Dtype:    as fused_recursive_layer_norm
    Args:     p, seed: as in fused_recursive_layer_norm
    Raises:   RuntimeError in a backward pass with create_graph=True
    """
    if p > 0 and seed is None:
        seed = _seed()
    return _chain(x.contiguous(), f.contiguous(), 1.0, (weight, bias), eps, 1.0, p, seed or 0, outside=True)


# --- Self-Adaptive Scaling -----------------------------------------------------------------------------------------


def _dropped(f: Tensor, p: float, seed: int) -> Tensor:
    out = torch.empty_like(f)
    _drop(f, out, p, seed, 1.0 / (1.0 - p))
    return out


class _Dropout(torch.autograd.Function):
    """Dropout that saves a seed instead of a mask."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, p: float, seed: int) -> Tensor:  # type: ignore[override]
        ctx.p, ctx.seed = p, seed
        return _dropped(f, p, seed)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _refuse_second_derivative()
        return _dropped(g.contiguous(), ctx.p, ctx.seed), None, None


def _sas_forward(x: Tensor, f: Tensor, eps: float, save: bool, parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return y and, with `save`, the hidden layer of the gates and the statistics; x and f are contiguous."""
    hidden_weight, hidden_bias, output_weight, output_bias, weight, bias = parameters
    channels = x.size(-1)
    rows = x.numel() // channels
    kind = hidden_weight.dtype
    hidden = torch.addmm(hidden_bias, x.view(rows, channels).to(kind), hidden_weight[:, :channels].t())
    hidden.addmm_(f.view(rows, channels).to(kind), hidden_weight[:, channels:].t())
    y = torch.empty_like(x, dtype=_result_dtype(x, f))
    stats = torch.empty(rows, 4, dtype=torch.float32, device=x.device) if save else None
    _launch(
        "sas_forward", rows, x, f, hidden, y, stats, output_weight, output_bias, weight, bias, eps,
        SAVE=save, **_shape(channels, FORWARD_LANES),
    )  # fmt: skip
    return (y, hidden, stats) if stats is not None else (y,)


class _SelfAdaptiveScaling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, eps: float, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        y, hidden, stats = _sas_forward(x, f, eps, True, parameters)
        ctx.save_for_backward(x, f, hidden, stats, *parameters)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _refuse_second_derivative()
        x, f, hidden, stats, *parameters = ctx.saved_tensors
        hidden_weight, hidden_bias, output_weight, output_bias, weight, bias = parameters
        channels = x.size(-1)
        rows = x.numel() // channels
        options = {"STAGES": BACKWARD_STAGES, **_shape(channels, BACKWARD_LANES)}
        dx, df, dh = torch.empty_like(x), torch.empty_like(f), torch.empty_like(hidden)
        total = _launch(
            "sas_backward", rows, g.contiguous(), x, f, hidden, stats, dx, df, dh,
            output_weight, weight, bias, rows, sums=6 * channels + 2, **options,
        )  # fmt: skip
        assert total is not None
        d_hidden_weight = torch.empty_like(hidden_weight)
        for side, source, gradient in ((0, x, dx), (1, f, df)):
            half = slice(side * channels, (side + 1) * channels)
            flat = gradient.view(rows, channels)
            if flat.dtype == dh.dtype:
                flat.addmm_(dh, hidden_weight[:, half])
            else:
                flat += dh @ hidden_weight[:, half]
            torch.mm(dh.t(), source.view(rows, channels).to(dh.dtype), out=d_hidden_weight[:, half])
        c = channels
        return (
            dx, df, None, d_hidden_weight, total[4 * c : 6 * c].to(hidden_bias.dtype),
            total[2 * c : 4 * c].view(2, c).to(output_weight.dtype), total[6 * c :].to(output_bias.dtype),
            total[:c].to(weight.dtype), total[c : 2 * c].to(bias.dtype),
        )  # fmt: skip


def fused_self_adaptive_scaling(
    x: Tensor,
    f: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    p: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Apply dropout, compute the gates' hidden layer with torch's GEMMs, and compute the rest with one kernel for each
    pass.

    Formula:  F = D ⊙ f / (1 - p);  y = α x + β F + (1 - α)(1 - β) LN(x + F);
              (α, β) = σ(tanh([x;F] W + b) v + c), [x;F] W computed as x W_x + F W_F
    Source:   Self-Adaptive Scaling, eq. 2 and 4
    Shapes:   x, f: (..., C) -> (..., C); hidden_weight (2C, 2C): rows by gate, columns x then F; hidden_bias (2C,);
              output_weight (2, C); output_bias (2,); weight, bias of the norm: (C,)
    Dtype:    fp16 / bf16 / fp32 in, the promoted dtype of x and f out, or fp32 under autocast; the GEMMs use the dtype
              of the hidden weight, or that of autocast, and everything after them is in fp32
    Args:     p: dropout probability, below 1; seed: of its mask (dropout_mask), 0 to 2^31 - 1; by default drawn from
              torch's generator
    Raises:   RuntimeError in a backward pass with create_graph=True
    """
    x, f = x.contiguous(), f.contiguous()
    if p > 0:
        f = _Dropout.apply(f, p, _seed() if seed is None else seed)
    if torch.is_autocast_enabled(x.device.type):
        kind = torch.get_autocast_dtype(x.device.type)
        hidden_weight, hidden_bias = hidden_weight.to(kind), hidden_bias.to(kind)
    parameters = (hidden_weight, hidden_bias, output_weight, output_bias, weight, bias)
    if _records((x, f, *parameters)):
        return _SelfAdaptiveScaling.apply(x, f, eps, *parameters)
    return _sas_forward(x, f, eps, False, parameters)[0]
