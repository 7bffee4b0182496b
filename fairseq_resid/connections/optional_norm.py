"""The option --residual-norm of the structures whose papers have no norm."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor, nn

from .base import ResidualConnection, invalid, layer_norm

NormOption = Annotated[Literal["none", "layer"], "norm applied to y"]


class OptionallyNormed(ResidualConnection):
    """A connection whose result is y, or LN(y) with --residual-norm layer."""

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0, *, residual_norm: NormOption = "none") -> None:
        super().__init__(dim, dropout)
        if residual_norm not in ("none", "layer"):
            raise invalid("residual_norm", residual_norm, "choose one of none, layer")
        self.norm = layer_norm(dim) if residual_norm == "layer" else nn.Identity()

    def forward(self, x: Tensor, f_out: Tensor) -> Tensor:
        return self.norm(self.combine(x, self.dropout(f_out)))
