"""The recursive LayerNorm chain of rSkip+LN."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor


def recursive_layer_norm(x: Tensor, f: Tensor, weights: list[Tensor], biases: list[Tensor], eps: float) -> Tensor:
    """Add the shortcut and normalise, once per norm, feeding each result back as the next branch.

    Formula:  y_1 = LN_1(x + F);  y_k = LN_k(x + y_{k-1}), k = 2..λ, λ the number of norms
    Source:   Rethinking Skip Connection with Layer Normalization, eq. 4; λ = 1 is Vaswani 2017's LN(x + F)
    Shapes:   x, f: (..., C) -> (..., C); each weight and bias: (C,)
    Dtype:    fp16 / bf16 / fp32 / fp64 in, the same out; the statistics of 16-bit input are in fp32
    """
    y = f
    for weight, bias in zip(weights, biases):  # noqa: B905  (TorchScript's zip has no strict)
        y = functional.layer_norm(x + y, weight.shape, weight, bias, eps)
    return y
