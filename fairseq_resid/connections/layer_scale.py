"""Pre-norm with a learned factor for each channel of the branch: LayerScale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .core import Fold, Options, Place, Structure, register
from .core.folding import affine
from .pre_ln import PreLayerNorm


class LayerScale(PreLayerNorm):
    """Scales each channel of the branch by a learned factor that starts small.

    Formula:  x + s ⊙ f(LN(x)), s learned
    Source:   Touvron 2021, CaiT
    Start:    s = 0.1 for up to 18 layers, 1e-5 for 24, and 1e-6 beyond. We use 1e-5 for 19 to 23 layers too, which the
              paper does not state, and count the layers of the site's own stack.
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        layers = place.depth(place.stack)
        start = 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6
        self.branch_weight = nn.Parameter(torch.full((place.dim,), start))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(x, self.branch_weight, f)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"s": self.branch_weight}


def fold(site: Any) -> Fold:
    """Fold x + s ⊙ f(LN(x))."""
    return Fold("pre_norm", (affine(site.norm),), branch=site.branch_weight.detach())


register(
    "layer_scale",
    Structure(
        Options,
        LayerScale,
        final_norm=True,
        folds=fold,
        family="Scaling",
        use_when="Deep pre-norm models whose branches should start small, especially image models.",
    ),
)
