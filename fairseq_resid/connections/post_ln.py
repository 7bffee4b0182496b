"""The residual structure of the original Transformer: post-norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core import Options, Place, ResidualConnection, Structure, register
from .core.folding import as_post_norm


class PostLayerNorm(ResidualConnection):
    """Normalises the sum of shortcut and branch.

    Formula:  LN(x + F)
    Source:   Vaswani 2017; the baseline of the rSkip and SAS papers
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
        family="Plain",
        use_when="The baseline of the rSkip and SAS papers and of most published scores. Deep stacks fail to train.",
    ),
)
