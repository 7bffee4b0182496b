"""Recursive skip connection with layer normalisation: rSkip+LN."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from ..ops import fused_recursive_layer_norm, recursive_layer_norm
from .base import ResidualConnection, invalid, layer_norm
from .registry import register


@register("rskip_ln")
class RecursiveSkipLayerNorm(ResidualConnection):
    """Adds the shortcut and normalises λ times, each time on what the last time gave.

    Formula:  y_1 = LN_1(x + F);  y_k = LN_k(x + y_{k-1}), k = 2..λ
    Source:   rSkip paper, eq. 4. λ = 1 is post_ln. Effective ratio of x to F: 1 + Σ_{i=1}^{λ-1} Π_{j≤i} σ_j / w_j
              (the paper prints λ as the upper limit, which contradicts its eq. 6 and the unrolled formula)
    """

    has_kernel = True

    def __init__(
        self,
        dim: int,
        dropout: nn.Module | float = 0.0,
        *,
        skip_lambda: Annotated[int, "λ >= 1, how many times the shortcut is added"] = 2,
    ) -> None:
        super().__init__(dim, dropout)
        if skip_lambda < 1:
            raise invalid("skip_lambda", skip_lambda, "rskip_ln takes an integer >= 1")
        self.norm = layer_norm(dim)
        self.recursive_norms = nn.ModuleList([layer_norm(dim) for _ in range(skip_lambda - 1)])

    def affine(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights and the biases of all norms, first to last."""
        weights: list[Tensor] = [self.norm.weight]
        biases: list[Tensor] = [self.norm.bias]
        for norm in self.recursive_norms:
            weights.append(norm.weight)  # type: ignore[arg-type]
            biases.append(norm.bias)  # type: ignore[arg-type]
        return weights, biases

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        weights, biases = self.affine()
        return recursive_layer_norm(x, f, weights, biases, self.norm.eps)

    def combine_fused(self, x: Tensor, f_out: Tensor, p: float) -> Tensor:
        return fused_recursive_layer_norm(x, f_out, *self.affine(), self.norm.eps, p)
