"""The combination of shortcut, branch and normalised sum in Self-Adaptive Scaling."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor


def self_adaptive_scaling(
    x: Tensor, f: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Weight and add the shortcut, the branch and their normalised sum.

    Formula:  y = α x + β F + γ LN(x + F);  eq. 4 has γ = (1 - α)(1 - β)
    Source:   Self-Adaptive Scaling, eq. 3 and 4
    Shapes:   x, f: (..., C) -> (..., C); alpha, beta, gamma: (..., 1) or (..., C); weight, bias of the norm: (C,)
    Dtype:    fp16 / bf16 / fp32 / fp64 in, the same out; the statistics of 16-bit input are in fp32
    """
    normalised = functional.layer_norm(x + f, weight.shape, weight, bias, eps)
    return torch.addcmul(torch.addcmul(alpha * x, beta, f), gamma, normalised)
