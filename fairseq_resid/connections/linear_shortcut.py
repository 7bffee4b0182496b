"""A linear map on the shortcut."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .base import xavier_uniform
from .optional_norm import NormOption, OptionallyNormed
from .registry import register


@register("linear_shortcut")
class LinearShortcut(OptionallyNormed):
    """Adds the branch to a linear map of the shortcut.

    Formula:  y = xW + b + F, W in R^{C×C} Xavier-uniform, b = 0            Source: He 2016b, 1×1 convolution
    Dtype:    under autocast y is 16-bit, as every matrix product is, where the other variants keep a fp32 shortcut
    """

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0, *, residual_norm: NormOption = "none") -> None:
        super().__init__(dim, dropout, residual_norm=residual_norm)
        self.shortcut_weight = nn.Parameter(xavier_uniform(dim, dim))
        self.shortcut_bias = nn.Parameter(torch.zeros(dim))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return dense_gate(x, self.shortcut_weight, self.shortcut_bias) + f
