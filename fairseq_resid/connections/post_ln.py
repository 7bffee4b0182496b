"""The residual structure of the original Transformer: post-norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core.base import ResidualConnection
from .core.folding import as_post_norm
from .core.options import Options
from .core.place import Place
from .core.registry import Structure, register


class PostLayerNorm(ResidualConnection):
    """Normalises the sum of shortcut and branch.

    Formula:  y = LN(x + F)            Source: Vaswani 2017; the baseline of the rSkip and SAS papers
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(x + f)


register(
    "post_ln",
    Structure(
        Options,
        PostLayerNorm,
        folds=as_post_norm,
        formula="LN(x + F)",
        source="Vaswani 2017",
        family="Plain",
        use_when="The baseline of the rSkip and SAS papers and of most published scores. Deep stacks fail to train.",
    ),
)
