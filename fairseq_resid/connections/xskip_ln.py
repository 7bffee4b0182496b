"""A shortcut multiplied by a constant λ, and a norm: xSkip+LN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .core.folding import Fold, affine
from .core.options import option
from .core.place import Place
from .core.registry import Structure, register
from .xskip import ExpandedOptions, ExpandedSkip


@dataclass(frozen=True)
class ExpandedNormOptions(ExpandedOptions):
    """Options of xskip_ln."""

    skip_lambda: float = option(2.0, "weight λ > 0 of the shortcut", above=0, example=3)


class ExpandedSkipLayerNorm(ExpandedSkip):
    """Normalises the sum of a scaled shortcut and the branch.

    Formula:  y = LN(λ x + μ F)            Source: rSkip paper, eq. 3 (μ = 1) and table 3 (μ = 2, 3)
    """

    def __init__(self, place: Place, options: ExpandedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(self.expanded_sum(x, f))


def fold(site: Any) -> Fold:
    """Fold LN(λ x + μ F)."""
    return Fold("post_norm", (affine(site.norm),), site.skip_lambda, site.branch_scale)


register(
    "xskip_ln",
    Structure(
        ExpandedNormOptions,
        ExpandedSkipLayerNorm,
        same_as=lambda options: "post_ln" if options.skip_lambda == options.branch_scale == 1 else None,
        folds=fold,
        formula="LN(λx + μF)",
        source="Liu 2020 (rSkip)",
        family="Scaling",
        use_when="The control for `rskip_ln`: the same doubled shortcut, but one norm instead of two.",
    ),
)
