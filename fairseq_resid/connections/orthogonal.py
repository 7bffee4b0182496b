"""A branch without its component along the shortcut: orthogonal residual updates."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core.mixing import widened
from .core.options import Options
from .core.place import Place
from .core.registry import Structure, register
from .pre_ln import PreLayerNorm

PROJECTION_EPS = 1e-6  # ε, as in the authors' code


class Orthogonal(PreLayerNorm):
    """Adds only the part of the branch that is orthogonal to the shortcut.

    Formula:  y = x + F - α x, α = F·x / (x·x + ε), ε = 1e-6, F = dropout(f(LN(x))); the stack ends with a norm
    Source:   Oh 2025, Revisiting Residual Connections, arXiv 2505.11881, and the authors' code
              (BootsofLagrangian/ortho-residual, residual.py), method "feature": one α for each position. Not
              implemented: the method "global", one α for a whole image, and orthogonal updates in only a random subset
              of the layers
    Dtype:    α in fp32 for a 16-bit x, whose squares would overflow
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.eps = PROJECTION_EPS

    def projection(self, x: Tensor, f: Tensor) -> Tensor:
        """Return α, (..., 1)."""
        return (f * x).sum(-1, keepdim=True) / (x.square().sum(-1, keepdim=True) + self.eps)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        wide, branch = widened(x), f.to(x.dtype)
        return (wide + branch - self.projection(wide, branch) * wide).to(x.dtype)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"α": self.projection(widened(x), f)}


register(
    "orthogonal",
    Structure(
        Options,
        Orthogonal,
        final_norm=True,
        formula="x + F − αx, α = F·x/(x·x), F from f(LN(x))",
        source="Oh 2025",
        family="Scaling",
        use_when="Pre-norm models whose branches should add new directions instead of rescaling the shortcut.",
    ),
)
