"""A shortcut with a learned weight per channel: wSkip+LN."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from .base import ResidualConnection, invalid, layer_norm
from .registry import register


@register("wskip_ln")
class WeightedSkipLayerNorm(ResidualConnection):
    """Normalises the sum of a learned, channelwise weighted shortcut and the branch.

    Formula:  y = LN(w ⊙ x + F), w in R^C            Source: rSkip paper, section 4.3, "Learning λ"
    """

    def __init__(
        self,
        dim: int,
        dropout: nn.Module | float = 0.0,
        *,
        wskip_init: Annotated[float, "start value of w; the paper tries 1 and 2"] = 1.0,
    ) -> None:
        super().__init__(dim, dropout)
        if not math.isfinite(wskip_init):
            raise invalid("wskip_init", wskip_init, "must be a finite number")
        self.norm = layer_norm(dim)
        self.skip_weight = nn.Parameter(torch.full((dim,), float(wskip_init)))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(torch.addcmul(f, self.skip_weight, x))
