"""The residual structures of the plain Transformer: the norm after the sum, or before the branch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops import fused_recursive_layer_norm, recursive_layer_norm
from .base import ResidualConnection, layer_norm
from .registry import register


@register("post_ln")
class PostLayerNorm(ResidualConnection):
    """Normalises the sum of shortcut and branch.

    Formula:  y = LN(x + F)            Source: Vaswani 2017; the baseline of both papers
    """

    has_kernel = True

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0) -> None:
        super().__init__(dim, dropout)
        self.norm = layer_norm(dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return recursive_layer_norm(x, f, [self.norm.weight], [self.norm.bias], self.norm.eps)

    def combine_fused(self, x: Tensor, f_out: Tensor, p: float) -> Tensor:
        return fused_recursive_layer_norm(x, f_out, [self.norm.weight], [self.norm.bias], self.norm.eps, p)


@register("pre_ln")
class PreLayerNorm(ResidualConnection):
    """Normalises what the branch sees and leaves the shortcut untouched; the stack ends in a norm of its own.

    Formula:  y = x + dropout(f(LN(x)))            Source: He 2016b's pre-activation, in Transformer form
    """

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0) -> None:
        super().__init__(dim, dropout)
        self.norm = layer_norm(dim)

    @torch.jit.export
    def branch_input(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + f
