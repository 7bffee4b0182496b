"""A shortcut multiplied by a constant λ: xSkip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .core import Options, Place, ResidualConnection, Structure, option, register
from .core.registry import for_no_options


@dataclass(frozen=True)
class ExpandedOptions(Options):
    """Options of xskip."""

    skip_lambda: float = option(1.0, "weight λ > 0 of the shortcut", above=0, example=3)
    branch_scale: float = option(1.0, "weight μ > 0 of the branch", above=0, example=0.5)


class ExpandedSkip(ResidualConnection):
    """Adds the branch to a scaled shortcut, without a norm.

    Formula:  λx + μF
    Where:    λ = 1 is a plain ResNet, λ = μ = 0.5 is He 2016b's constant scaling
    Source:   Liu 2020 (rSkip) and He 2016b: eq. 2, where μ = 1, and section 3.1
    """

    def __init__(self, place: Place, options: ExpandedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.skip_lambda, self.branch_scale = options.skip_lambda, options.branch_scale

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        branch = f if self.branch_scale == 1.0 else self.branch_scale * f  # saves a pass over memory
        return torch.add(branch, x, alpha=self.skip_lambda)


register(
    "xskip",
    Structure(
        ExpandedOptions,
        ExpandedSkip,
        has_norm=for_no_options,
        family="Scaling",
        use_when="Reproducing the rSkip paper. In Transformers without a norm it diverges; use `xskip_ln` there.",
    ),
)
