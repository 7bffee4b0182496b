"""Dropout on the shortcut."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .core import Place, Structure, register
from .core.optional_norm import OptionallyNormed, OptionalNorm


class DropoutShortcut(OptionallyNormed):
    """Drops elements of the shortcut with probability 0.5 during training.

    Formula:  dropout(x, 0.5) + F
    Source:   He 2016b, section 3.1, dropout shortcut
    """

    def __init__(self, place: Place, options: OptionalNorm, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.shortcut_dropout = nn.Dropout(0.5)

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return self.shortcut_dropout(x) + f


register(
    "dropout_shortcut",
    Structure(
        OptionalNorm,
        DropoutShortcut,
        has_norm=OptionalNorm.has_norm,
        family="Scaling",
        use_when="Reproducing He 2016b. In Transformers without `--residual-norm layer` it diverges.",
    ),
)
