"""Post-norm in the first layers and pre-norm in the others: Mix-LN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .core.base import ResidualConnection
from .core.options import Options, option
from .core.place import Place
from .core.registry import Structure, register


@dataclass(frozen=True)
class MixedOptions(Options):
    """Options of mix_ln."""

    post_share: float = option(
        0.25, "share of the layers, counted from the first, that use post-norm", above=0, most=1, example=0.5
    )


class MixedLayerNorm(ResidualConnection):
    """Uses post-norm in the first layers of a stack and pre-norm in the others.

    Formula:  y = LN(x + F) in the first share of the layers, x + f(LN(x)) in the rest; the stack ends with a norm
    Source:   Li 2024, Mix-LN: a share of 0.25 (3 of 12 and 6 of 24 layers); rounding up is our choice
    """

    def __init__(self, place: Place, options: MixedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.is_post = place.layer < math.ceil(options.post_share * place.depth(place.stack))
        self.norm = place.norm(place.dim)

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
        formula="`post_ln` in the first layers, `pre_ln` in the others",
        source="Li 2024",
        family="Norms",
        use_when="A compromise between `post_ln` and `pre_ln`.",
    ),
)
