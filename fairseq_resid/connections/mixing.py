"""Weighted sums of values that lie side by side in a state, without a copy of them."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor


def batch_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, (N, a, b) and (N, b, c), in their dtype: autocast would halve it."""
    if torch.jit.is_scripting():
        return torch.bmm(left, right)
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left, right)


def full_precision_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T in their dtype: autocast would halve it."""
    if torch.jit.is_scripting():
        return functional.linear(x, weight)
    with torch.autocast(x.device.type, enabled=False):
        return functional.linear(x, weight)


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Return weights times values, in the values' dtype.

    Shapes:  weights (..., m, n), or (m, n) for every position; values (..., n, C), a view of a wider state too
             -> (..., m, C)
    """
    shape = values.shape[:-2] + weights.shape[-2:-1] + values.shape[-1:]
    flat = values.flatten(0, -3) if values.dim() > 2 else values.unsqueeze(0)
    weights = weights.to(values.dtype)
    # Not matmul, which for weights of two dimensions makes a copy of the values.
    weights = weights.expand(flat.shape[:1] + weights.shape) if weights.dim() == 2 else weights.flatten(0, -3)
    return batch_product(weights, flat).view(shape)


def dot(values: Tensor, vector: Tensor) -> Tensor:
    """Return the product of every value with a vector, (..., n, C) and (C,) -> (..., n), in the values' dtype."""
    flat = values.flatten(0, -3) if values.dim() > 2 else values.unsqueeze(0)
    column = vector.to(values.dtype).unsqueeze(-1)
    return batch_product(flat, column.expand(flat.shape[:1] + column.shape)).view(values.shape[:-1])
