"""Label-smoothed cross-entropy of an output projection, without a (tokens × V) matrix of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 512  # tokens in a chunk
LARGEST = torch.finfo(torch.float16).max


def chunked_label_smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, rows: int = ROWS
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the NLL of a target, summed over its tokens; the NLL has no gradient.

    Formula:  z = h Wᵀ;  nll = ln Σ_v exp z_v − z_t;  loss = (1 − ε − ε') nll + ε' Σ_v (nll + z_t − z_v),
              ε' = ε / (V − 1), so that every word except the target has the probability ε', as in fairseq's
              label_smoothed_cross_entropy.
              The gradient, dz = softmax(z) − (1 − ε − ε') onehot(t) − ε', is computed in the forward pass, chunk by
              chunk; dh = dz W and dW = Σ dzᵀ h are all that is saved for the backward pass.
    Shapes:   hidden (N, C), weight (V, C), target (N,), integers -> two scalars, in nats
    Dtype:    products in the dtype of hidden, or in that of autocast; exponentials, sums and dW in fp32 (fp64 for
              fp64). In fp16, dz is multiplied by a power of two, because ε' and most probabilities are tiny
    Args:     smoothing: ε; rows: tokens in a chunk, whose logits are the only ones in memory
    It can be differentiated once.
    """
    device = hidden.device.type
    dtype = hidden.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        result: tuple[Tensor, Tensor] = _Chunked.apply(hidden, weight, target, smoothing, rows, dtype)
        return result
    with torch.autocast(device, enabled=False):
        loss, nll, *_ = _sums(hidden.to(dtype), weight.to(dtype), target, smoothing, rows, has_gradient=False)
    return loss, nll


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, rows: int, dtype: Any
    ) -> Any:
        with torch.autocast(hidden.device.type, enabled=False):
            loss, nll, *gradients = _sums(
                hidden.to(dtype), weight.to(dtype), target, smoothing, rows, has_gradient=True
            )
        ctx.save_for_backward(*gradients)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        in_hidden, in_weight, scale = ctx.saved_tensors
        factor = gradient / scale
        hidden_type, weight_type = ctx.dtypes
        # fp16 times a number is fp16, and the factor may be beyond its range: multiply in the dtype of the factor.
        in_hidden = (in_hidden.to(factor.dtype) * factor).to(hidden_type)
        return in_hidden, (in_weight * factor).to(weight_type), None, None, None, None


def _sums(
    hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, rows: int, has_gradient: bool
) -> tuple[Tensor, ...]:
    """Return the loss and the NLL, and with `has_gradient` dh and dW times a scale, and that scale."""
    words = len(weight)
    other = smoothing / (words - 1)
    own = 1 - smoothing - other
    exact = torch.promote_types(hidden.dtype, torch.float32)
    scale = _scale(hidden, weight, rows)
    loss, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
    if has_gradient:
        in_hidden, in_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
    buffer = torch.empty(min(rows, len(hidden)), words, dtype=exact, device=hidden.device)
    for start in range(0, len(hidden), rows):
        h, chosen = hidden[start : start + rows], target[start : start + rows].unsqueeze(1)
        z = buffer[: len(h)]
        if z.dtype == h.dtype:
            torch.mm(h, weight.t(), out=z)
        else:
            z.copy_(torch.mm(h, weight.t()))
        z.sub_(z.amax(1, keepdim=True))
        z_target, z_all = z.gather(1, chosen).sum(), z.sum()
        exponentials = z.exp_()
        sums = exponentials.sum(1, keepdim=True)
        log_sums = sums.log().sum()
        nll += log_sums - z_target
        loss += own * (log_sums - z_target) + other * (words * log_sums - z_all)
        if has_gradient:
            dz = exponentials.div_(sums).sub_(other)
            dz.scatter_add_(1, chosen, dz.new_full((), -own).expand(chosen.shape))
            if dz.dtype == h.dtype:
                torch.mm(dz, weight, out=in_hidden[start : start + rows])
                in_weight.addmm_(dz.t(), h)
            else:
                dz = dz.mul_(scale).to(h.dtype)
                torch.mm(dz, weight, out=in_hidden[start : start + rows])
                in_weight.add_(torch.mm(dz.t(), h))
    return (loss, nll, in_hidden, in_weight, scale) if has_gradient else (loss, nll)


def _scale(hidden: Tensor, weight: Tensor, rows: int) -> Tensor:
    """Return the largest power of two by which dz of fp16 can be multiplied without an overflow in dz W or dzᵀ h."""
    if hidden.dtype != torch.float16 or not len(hidden):
        return torch.ones((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
    # Each row of dz has a sum of absolute values below 2, and each of its values is below 1.
    largest = torch.maximum(rows * hidden.abs().amax().float(), 2 * weight.abs().amax().float()).clamp(min=1)
    return torch.exp2(torch.floor(torch.log2(LARGEST / largest)))
