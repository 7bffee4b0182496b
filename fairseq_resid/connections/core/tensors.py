"""Operations on tensors that several structures share: initial weights, products in full precision, weighted sums."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


def xavier_uniform(rows: int, columns: int) -> Tensor:
    """Return a Xavier-uniform (rows, columns) weight (tensor2tensor's default initialiser)."""
    return nn.init.xavier_uniform_(torch.empty(rows, columns))


def widened(x: Tensor) -> Tensor:
    """Return a 16-bit tensor as fp32, and any other as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def batch_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, (N, a, b) @ (N, b, c), in the dtype of the inputs, which autocast would lower."""
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left, right)


def full_precision_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T in the dtype of the inputs, which autocast would lower."""
    with torch.autocast(x.device.type, enabled=False):
        return functional.linear(x, weight)


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Return weights @ values in the dtype of the values, without copying the values.

    Shapes:  weights (..., m, n), or (m, n) for all positions; values (..., n, C), possibly a view of a wider state
             -> (..., m, C)
    """
    shape = values.shape[:-2] + weights.shape[-2:-1] + values.shape[-1:]
    flat = values.flatten(0, -3) if values.dim() > 2 else values.unsqueeze(0)
    weights = weights.to(values.dtype)
    # Not matmul, which copies the values if the weights have two dimensions.
    weights = weights.expand(flat.shape[:1] + weights.shape) if weights.dim() == 2 else weights.flatten(0, -3)
    return batch_product(weights, flat).view(shape)


def dot(values: Tensor, vector: Tensor) -> Tensor:
    """Return the dot product of each value with a vector, (..., n, C) and (C,) -> (..., n), in the values' dtype."""
    flat = values.flatten(0, -3) if values.dim() > 2 else values.unsqueeze(0)
    column = vector.to(values.dtype).unsqueeze(1)
    return batch_product(flat, column.expand(flat.shape[:1] + column.shape)).view(values.shape[:-1])
