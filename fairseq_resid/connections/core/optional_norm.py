"""The --residual-norm option of structures whose papers use no norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .base import ResidualConnection
from .options import Options, option
from .place import Place


@dataclass(frozen=True)
class OptionalNorm(Options):
    """Options of a structure with an optional norm."""

    residual_norm: str = option("none", "norm applied to y", choices=("none", "layer"))

    def has_norm(self) -> bool:
        """Return whether the structure has a norm."""
        return self.residual_norm == "layer"


class OptionallyNormed(ResidualConnection):
    """A connection that returns y, or LN(y) with --residual-norm layer. A subclass computes y in `join`."""

    def __init__(self, place: Place, options: OptionalNorm, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim) if options.has_norm() else nn.Identity()

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        """Return y from the shortcut x and the branch F."""
        raise NotImplementedError("an OptionallyNormed connection must define join")

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(self.join(x, f))
