"""Post-norm in the first layers and pre-norm in the others: Mix-LN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .core import Options, Place, Structure, option, register
from .post_ln import PostLayerNorm


@dataclass(frozen=True)
class MixedOptions(Options):
    """Options of mix_ln."""

    post_share: float = option(
        0.25, "share of the layers, counted from the first, that use post-norm", above=0, most=1, example=0.5
    )


class MixedLayerNorm(PostLayerNorm):
    """Uses post-norm in the first layers of a stack and pre-norm in the others.

    Formula:  `post_ln` in the first layers, `pre_ln` in the others
    Source:   Li 2024, Mix-LN: a share of 0.25 (3 of 12 and 6 of 24 layers); rounding up is our choice
    """

    def __init__(self, place: Place, options: MixedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.is_post = place.layer < math.ceil(options.post_share * place.depth(place.stack))

    def branch_input(self, x: Tensor) -> Tensor:
        return x if self.is_post else self.norm(x)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(x + f) if self.is_post else x + f


register(
    "mix_ln",
    Structure(
        MixedOptions,
        MixedLayerNorm,
        same_as=lambda options: "post_ln" if options.post_share == 1 else None,
        final_norm=True,
        family="Norms",
        use_when="A compromise between `post_ln` and `pre_ln`.",
    ),
)
