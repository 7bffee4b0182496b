"""Shortcuts with a learned weight per channel: wSkip+LN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core import Fold, Options, Place, Structure, option, register
from .core.folding import affine
from .post_ln import PostLayerNorm


@dataclass(frozen=True)
class WeightedOptions(Options):
    """Options of wskip_ln."""

    wskip_init: float = option(1.0, "initial value of w; the paper tries 1 and 2", example=2, is_initial=True)


class WeightedSkipLayerNorm(PostLayerNorm):
    """Normalises the sum of the branch and a shortcut with a learned weight for each channel.

    Formula:  LN(w ⊙ x + F), w learned
    Source:   Liu 2020 (rSkip), section 4.3, "Learning λ"
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.skip_weight = nn.Parameter(torch.full((place.dim,), self.start(place, options)))

    def start(self, place: Place, options: Any) -> float:
        """Return the initial value of w."""
        return float(options.wskip_init)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(torch.addcmul(f, self.skip_weight, x))

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"w": self.skip_weight}


def fold(site: Any) -> Fold:
    """Fold LN(w ⊙ x + F)."""
    return Fold("post_norm", (affine(site.norm),), site.skip_weight.detach())


register(
    "wskip_ln",
    Structure(
        WeightedOptions,
        WeightedSkipLayerNorm,
        folds=fold,
        family="Scaling",
        use_when="The rSkip paper's control with a learned instead of a fixed shortcut weight.",
    ),
)
