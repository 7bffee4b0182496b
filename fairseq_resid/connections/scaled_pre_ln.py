"""Pre-norm with norms that are scaled down with depth: LayerNorm Scaling."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from .core import Fold, Options, Place, Structure, register
from .core.folding import affine
from .pre_ln import PreLayerNorm


class ScaledPreLayerNorm(PreLayerNorm):
    """Scales the branch input down, more strongly in deeper layers.

    Formula:  x + f(LN(x)/√l), l the layer
    Where:    l counts from 1; the norm that ends the stack is not scaled
    Source:   Sun 2025, LayerNorm Scaling
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        place.require_depths()
        self.scale = 1 / math.sqrt(place.layer + 1)

    def branch_input(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.scale


def fold(site: Any) -> Fold:
    """Fold x + f(LN(x) / √l)."""
    return Fold("pre_norm", (affine(site.norm, site.scale),))


register(
    "scaled_pre_ln",
    Structure(
        Options,
        ScaledPreLayerNorm,
        final_norm=True,
        folds=fold,
        family="Scaling",
        use_when="Deep pre-norm models whose last layers contribute too little.",
    ),
)
