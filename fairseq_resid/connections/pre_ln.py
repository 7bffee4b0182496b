"""The residual structure of pre-norm Transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core import Options, Place, ResidualConnection, Structure, register
from .core.folding import as_pre_norm


class PreLayerNorm(ResidualConnection):
    """Normalises the input of the branch and leaves the shortcut unchanged.

    Formula:  x + f(LN(x)), with a norm at the end of the stack
    Source:   He 2016b's pre-activation, in Transformer form
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)

    def branch_input(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + f


register(
    "pre_ln",
    Structure(
        Options,
        PreLayerNorm,
        final_norm=True,
        folds=as_pre_norm,
        family="Plain",
        use_when="A safe default: it starts to train at 18 + 18 layers at both learning rates that were tried.",
    ),
)
