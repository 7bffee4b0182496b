"""A branch without its component along the shortcut: orthogonal residual updates."""

from __future__ import annotations

from torch import Tensor

from .core import Options, Structure, register
from .core.tensors import widened
from .pre_ln import PreLayerNorm

PROJECTION_EPS = 1e-6  # ε, as in the authors' code


class Orthogonal(PreLayerNorm):
    """Adds only the part of the branch that is orthogonal to the shortcut.

    Formula:  x + F − αx, α = F·x/(x·x), F from f(LN(x))
    Where:    ε = 1e-6 is added to x·x
    Source:   Oh 2025, Revisiting Residual Connections, arXiv 2505.11881, and the authors' code
              (BootsofLagrangian/ortho-residual, residual.py), method "feature": one α for each position. Not
              implemented: the method "global", one α for a whole image, and orthogonal updates in only a random subset
              of the layers
    Dtype:    α in fp32 for a 16-bit x, whose squares would overflow
    """

    def projection(self, x: Tensor, f: Tensor) -> Tensor:
        """Return α, (..., 1)."""
        return (f * x).sum(-1, keepdim=True) / (x.square().sum(-1, keepdim=True) + PROJECTION_EPS)

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
        family="Scaling",
        use_when="Pre-norm models whose branches should add new directions instead of rescaling the shortcut.",
    ),
)
