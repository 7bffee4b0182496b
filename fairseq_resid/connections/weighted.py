"""A shortcut with a learned weight per channel: wSkip+LN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import ResidualConnection
from .options import Options, option
from .place import Place
from .registry import Structure, register


@dataclass(frozen=True)
class WeightedOptions(Options):
    """Of wskip_ln."""

    wskip_init: float = option(1.0, "start value of w; the paper tries 1 and 2")


class WeightedSkipLayerNorm(ResidualConnection):
    """Normalises the sum of a learned, channelwise weighted shortcut and the branch.

    Formula:  y = LN(w ⊙ x + F), w in R^C            Source: rSkip paper, section 4.3, "Learning λ"
    """

    def __init__(self, place: Place, options: WeightedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)
        self.skip_weight = nn.Parameter(torch.full((place.dim,), options.wskip_init))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(torch.addcmul(f, self.skip_weight, x))

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"w": self.skip_weight}


register("wskip_ln", Structure(WeightedOptions, WeightedSkipLayerNorm))
