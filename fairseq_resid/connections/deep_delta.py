"""A rank-one update that erases and rewrites one direction of the shortcut: Deep Delta Learning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, Structure, register
from .core.tensors import full_precision_linear, widened
from .pre_ln import PreLayerNorm

DIRECTION_EPS = 1e-5  # ε, as in the authors' code


class DeepDelta(PreLayerNorm):
    """Moves the component of the shortcut in the direction of the branch towards a predicted value.

    Formula:  x + β(v − F·x)F, F from f(LN(x)) scaled to length 1, β and v predicted from x
    Where:    F is divided by √(F·F + ε²), ε = 1e-5; β = 2 σ(w_β · LN(x) + b_β); v = 4 σ(w_v · x + b_v)
    Source:   Zhang 2026, Deep Delta Learning, arXiv 2601.00417, and the authors' code for a one-dimensional value
              (yifanzhang-pro/deep-delta-learning, DDL-vdim1-gpt-mha-rope.py), which uses RMSNorm. Not implemented: a
              state with several values per channel, a hidden layer for β, or scaled-down output projections
    Start:    β = 1 on average: w_β and w_v normal with standard deviation 0.5 / √C, b_β = 0; b_v = 0 is our choice
              (theirs is uniform up to 1 / √C)
    Dtype:    F, β and v in fp32 for a 16-bit x. The gradient of β contains x²: it is finite up to |x| = 1e13 / S
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        deviation = 0.5 / math.sqrt(place.dim)
        self.gate_weight = nn.Parameter(deviation * torch.randn(1, place.dim))
        self.gate_bias = nn.Parameter(torch.zeros(1))
        self.value_weight = nn.Parameter(deviation * torch.randn(1, place.dim))
        self.value_bias = nn.Parameter(torch.zeros(1))

    def gate(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return β, (..., 1)."""
        logits = full_precision_linear(self.norm(x).to(dtype), self.gate_weight.to(dtype))
        return 2 * torch.sigmoid(logits + self.gate_bias)

    def value(self, wide: Tensor) -> Tensor:
        """Return v, (..., 1)."""
        logits = full_precision_linear(wide, self.value_weight.to(wide.dtype))
        return 4.0 * torch.sigmoid(logits + self.value_bias)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        wide = widened(x)
        f = f.to(wide.dtype)
        f = f * torch.rsqrt(f.square().sum(-1, keepdim=True) + DIRECTION_EPS**2)
        change = self.gate(x, wide.dtype) * (self.value(wide) - (f * wide).sum(-1, keepdim=True))
        return torch.addcmul(wide, change, f).to(x.dtype)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        wide = widened(x)
        return {"β": self.gate(x, wide.dtype), "v": self.value(wide)}


register(
    "deep_delta",
    Structure(
        Options,
        DeepDelta,
        final_norm=True,
        family="Gates",
        use_when="Pre-norm models that should overwrite parts of the shortcut instead of only adding to it.",
    ),
)
