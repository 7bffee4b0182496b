"""A branch with a learned scalar that starts at zero: ReZero."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from .core import Options, Place, ResidualConnection, Structure, register
from .core.registry import for_no_options


class ReZero(ResidualConnection):
    """Adds the branch times a learned scalar, without a norm; every layer starts as the identity.

    Formula:  x + aF, a learned, initially 0, one per layer
    Source:   Bachlechner 2020, ReZero, eq. 5, and its code (rezero/transformer/rztx.py: `resweight` of a layer)
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.branch_scalar = nn.Parameter(torch.zeros(()))

    def share(self, first: ResidualConnection) -> None:
        self.branch_scalar = cast(ReZero, first).branch_scalar

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(x, self.branch_scalar, f)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"a": self.branch_scalar}


register(
    "rezero",
    Structure(
        Options,
        ReZero,
        has_norm=for_no_options,
        family="Scaling",
        use_when="Very deep stacks that should start as the identity.",
    ),
)
