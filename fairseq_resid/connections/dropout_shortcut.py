"""Dropout on the shortcut."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .core.optional_norm import OptionallyNormed, OptionalNorm
from .core.place import Place
from .core.registry import Structure, register

SHORTCUT_DROPOUT = 0.5  # He 2016b, section 3.1, "Dropout shortcut"


class DropoutShortcut(OptionallyNormed):
    """Drops elements of the shortcut with probability 0.5 during training.

    Formula:  y = dropout(x, 0.5) + F            Source: He 2016b, dropout shortcut
    """

    def __init__(self, place: Place, options: OptionalNorm, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.shortcut_dropout = nn.Dropout(SHORTCUT_DROPOUT)

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return self.shortcut_dropout(x) + f


register(
    "dropout_shortcut",
    Structure(
        OptionalNorm,
        DropoutShortcut,
        has_norm=OptionalNorm.has_norm,
        formula="dropout(x, 0.5) + F",
        source="He 2016b",
        family="Scaling",
        use_when="Reproducing He 2016b. In Transformers without `--residual-norm layer` it diverges.",
    ),
)
