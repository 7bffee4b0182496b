"""Shortcuts expanded by a constant λ: xSkip and xSkip+LN."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from ..ops import fused_recursive_layer_norm
from .base import ResidualConnection, invalid, layer_norm
from .registry import register


@register("xskip")
class ExpandedSkip(ResidualConnection):
    """Adds the branch to an expanded shortcut, without a norm.

    Formula:  y = λ x + μ F            Source: rSkip paper, eq. 2 (μ = 1 there); λ = 1 is the plain ResNet,
              λ = μ = 0.5 He 2016b's constant scaling
    """

    def __init__(
        self,
        dim: int,
        dropout: nn.Module | float = 0.0,
        *,
        skip_lambda: Annotated[float, "λ > 0, weight of the shortcut"] = 1.0,
        branch_scale: Annotated[float, "μ > 0, weight of the branch"] = 1.0,
    ) -> None:
        super().__init__(dim, dropout)
        for option, value in (("skip_lambda", skip_lambda), ("branch_scale", branch_scale)):
            if not (math.isfinite(value) and value > 0):
                raise invalid(option, value, "must be a positive number")
        self.skip_lambda = float(skip_lambda)
        self.branch_scale = float(branch_scale)

    def expanded_sum(self, x: Tensor, f: Tensor) -> Tensor:
        """Return λ x + μ F in one pass over memory, or two if μ is not 1."""
        branch = f if self.branch_scale == 1.0 else self.branch_scale * f
        return torch.add(branch, x, alpha=self.skip_lambda)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.expanded_sum(x, f)


@register("xskip_ln")
class ExpandedSkipLayerNorm(ExpandedSkip):
    """Normalises the sum of an expanded shortcut and the branch.

    Formula:  y = LN(λ x + μ F)            Source: rSkip paper, eq. 3 (μ = 1) and table 3 (μ = 2, 3)
    """

    has_kernel = True

    def __init__(
        self,
        dim: int,
        dropout: nn.Module | float = 0.0,
        *,
        skip_lambda: Annotated[float, "λ > 0, weight of the shortcut"] = 2.0,
        branch_scale: Annotated[float, "μ > 0, weight of the branch"] = 1.0,
    ) -> None:
        super().__init__(dim, dropout, skip_lambda=skip_lambda, branch_scale=branch_scale)
        self.norm = layer_norm(dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(self.expanded_sum(x, f))

    def combine_fused(self, x: Tensor, f_out: Tensor, p: float) -> Tensor:
        weights, biases = [self.norm.weight], [self.norm.bias]
        return fused_recursive_layer_norm(
            x, f_out, weights, biases, self.norm.eps, p, self.skip_lambda, self.branch_scale
        )
