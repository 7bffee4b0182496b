"""A shortcut multiplied by a constant λ: xSkip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .core.base import ResidualConnection
from .core.options import Options, option
from .core.place import Place
from .core.registry import Structure, for_no_options, register


@dataclass(frozen=True)
class ExpandedOptions(Options):
    """Options of xskip."""

    skip_lambda: float = option(1.0, "weight λ > 0 of the shortcut", above=0, example=3)
    branch_scale: float = option(1.0, "weight μ > 0 of the branch", above=0, example=0.5)


class ExpandedSkip(ResidualConnection):
    """Adds the branch to a scaled shortcut, without a norm.

    Formula:  y = λ x + μ F            Source: rSkip paper, eq. 2 (μ = 1 there); λ = 1 is a plain ResNet,
              λ = μ = 0.5 is He 2016b's constant scaling
    """

    def __init__(self, place: Place, options: ExpandedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.skip_lambda, self.branch_scale = options.skip_lambda, options.branch_scale

    def expanded_sum(self, x: Tensor, f: Tensor) -> Tensor:
        """Return λ x + μ F in one pass over memory, or two if μ is not 1."""
        branch = f if self.branch_scale == 1.0 else self.branch_scale * f
        return torch.add(branch, x, alpha=self.skip_lambda)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.expanded_sum(x, f)


register(
    "xskip",
    Structure(
        ExpandedOptions,
        ExpandedSkip,
        has_norm=for_no_options,
        formula="λx + μF",
        source="Liu 2020 (rSkip); He 2016b",
        family="Scaling",
        use_when="Reproducing the rSkip paper. In Transformers without a norm it diverges; use `xskip_ln` there.",
    ),
)
