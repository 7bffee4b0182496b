"""A shortcut multiplied by a constant λ, and a norm: xSkip+LN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .core import Fold, Place, Structure, option, register
from .core.folding import affine
from .xskip import ExpandedOptions, ExpandedSkip


@dataclass(frozen=True)
class ExpandedNormOptions(ExpandedOptions):
    """Options of xskip_ln."""

    skip_lambda: float = option(2.0, "weight λ > 0 of the shortcut", above=0, example=3)


class ExpandedSkipLayerNorm(ExpandedSkip):
    """Normalises the sum of a scaled shortcut and the branch.

    Formula:  LN(λx + μF)
    Source:   Liu 2020 (rSkip), eq. 3 (μ = 1) and table 3 (μ = 2, 3)
    """

    def __init__(self, place: Place, options: ExpandedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(super().combine(x, f))


def fold(site: Any) -> Fold:
    """Fold LN(λx + μF)."""
    return Fold("post_norm", (affine(site.norm),), site.skip_lambda, site.branch_scale)


register(
    "xskip_ln",
    Structure(
        ExpandedNormOptions,
        ExpandedSkipLayerNorm,
        same_as=lambda options: "post_ln" if options.skip_lambda == options.branch_scale == 1 else None,
        folds=fold,
        family="Scaling",
        use_when="The control for `rskip_ln`: the same doubled shortcut, but one norm instead of two.",
    ),
)
