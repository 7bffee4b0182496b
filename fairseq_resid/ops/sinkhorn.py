"""Sinkhorn normalisation of a small matrix at every position: the plain formula, and a faster function for training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .compilation import is_recorded


def sinkhorn(logits: Tensor, steps: int) -> Tensor:
    """Return exp(logits) after `steps` rounds that scale its columns, then its rows, to a sum of 1.

    Source: Sinkhorn and Knopp 1967; Xie 2025, arXiv 2512.24880, ends with the rows
    Shapes: (..., n, n), n small; steps: at least 1
    Dtype:  fp32 for 16-bit logits, otherwise that of the logits
    """
    if logits.dtype == torch.float16 or logits.dtype == torch.bfloat16:
        logits = logits.float()
    if is_recorded(logits):
        return sinkhorn_rounds(logits, steps)
    return _Sinkhorn.apply(logits, steps)  # type: ignore[no-any-return]


def sinkhorn_rounds(logits: Tensor, steps: int) -> Tensor:
    """Compute `sinkhorn` round by round, with operations that can be traced, exported and differentiated twice.

    The first round works on logarithms, so that a row or column may have any offset. After it, every sum is between
    1/n² and n: a column whose sum is 1 has an entry of at least 1/n, which the division by its row's sum, at most n,
    leaves at 1/n² or more.
    """
    weights = torch.softmax(torch.log_softmax(logits, -2), -1)
    for _ in range(steps - 1):
        weights = weights / weights.sum(-2, keepdim=True)
        weights = weights / weights.sum(-1, keepdim=True)
    return weights


class _Sinkhorn(torch.autograd.Function):
    """`sinkhorn_rounds` with the positions last in memory, (n, n, N), and a hand-written backward pass.

    The rounds after the first work in place, so that only the input, the result and the sums are saved for the backward
    pass. Let P = Q s, with s the sums of P along a dimension, and let H be the gradient of the loss with respect to
    log Q. Then the gradient with respect to log P is H - Q ΣH. Each division of a round is therefore undone with two
    operations, and the last H is the gradient with respect to the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, steps: int) -> Tensor:
        weights = torch.softmax(torch.log_softmax(_positions_last(logits), 0), 1)
        sums = weights.new_empty(2 * (steps - 1), *weights.shape[1:])
        for columns, rows in zip(sums[::2], sums[1::2], strict=True):
            weights.div_(torch.sum(weights, 0, out=columns))
            weights.div_(torch.sum(weights, 1, out=rows).unsqueeze(1))
        ctx.save_for_backward(logits, weights, sums)
        return _positions_first(weights, logits.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, weights, sums = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: this pass must itself be differentiable
            result = sinkhorn_rounds(logits, len(sums) // 2 + 1)
            return torch.autograd.grad(result, logits, gradient, create_graph=True)[0], None
        weights = weights.clone()
        in_logs = _positions_last(gradient).mul_(weights)
        for columns, rows in zip(sums[::2].flip(0), sums[1::2].flip(0), strict=True):
            in_logs.addcmul_(weights, in_logs.sum(1, keepdim=True), value=-1)
            weights.mul_(rows.unsqueeze(1))
            in_logs.addcmul_(weights, in_logs.sum(0), value=-1)
            weights.mul_(columns)
        # The first round, whose sums were not saved.
        in_logs.addcmul_(weights, in_logs.sum(1, keepdim=True), value=-1)
        in_logs.addcmul_(torch.softmax(_positions_last(logits), 0), in_logs.sum(0), value=-1)
        return _positions_first(in_logs, logits.shape), None


def _positions_last(values: Tensor) -> Tensor:
    """Return a copy of (..., n, n) as (n, n, N)."""
    n = values.size(-1)
    flat = values.reshape(-1, n * n).t()
    return flat.clone(memory_format=torch.contiguous_format).view(n, n, -1)


def _positions_first(values: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor (n, n, N) as a contiguous one of the given shape (..., n, n)."""
    return values.flatten(0, 1).t().contiguous().view(shape)
