"""A norm of the branch only: residual post-norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core.base import ResidualConnection
from .core.options import Options
from .core.place import Place
from .core.registry import Structure, register


class ResidualPostNorm(ResidualConnection):
    """Normalises only the output of the branch.

    Formula:  y = x + LN(F), F = dropout(f(x)); the stack ends with a norm
    Source:   OLMo 2, 2024, which uses RMSNorm
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + self.norm(f)


register(
    "res_post_norm",
    Structure(
        Options,
        ResidualPostNorm,
        final_norm=True,
        formula="x + LN(F)",
        source="OLMo 2, 2024",
        family="Norms",
        use_when="Models that need bounded branches and a shortcut without norms.",
    ),
)
