"""A post-norm structure whose shortcut is multiplied by the number of sublayers: Keel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, ResidualConnection, Structure, register


class Keel(ResidualConnection):
    """Normalises the branch input, and the sum of the branch and a shortcut scaled by the number of sublayers.

    Formula:  LN(αx + f(LN(x))), α the number of sublayers
    Where:    α counts the sublayers of the stack and is not learned; in the first layer α = 1, and its first site has
              no outer LN; the last outer LN ends the stack
    Source:   Chen 2026, arXiv 2601.19895, a decoder with RMSNorm. Our choices: LN, a separate α for each stack, and
              α = 1 for the first cross-attention too.
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        place.require_depths()
        self.alpha = 1.0 if place.layer == 0 else float(place.sites)
        self.inner_norm = place.norm(place.dim)
        self.norm = nn.Identity() if place.index == 0 else place.norm(place.dim)

    def branch_input(self, x: Tensor) -> Tensor:
        return self.inner_norm(x)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(torch.add(f, x, alpha=self.alpha))


register(
    "keel",
    Structure(Options, Keel, family="Scaling", use_when="Very deep stacks that should stay post-norm."),
)
