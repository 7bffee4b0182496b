"""Dropout on the shortcut."""

from __future__ import annotations

from torch import Tensor, nn

from .optional_norm import NormOption, OptionallyNormed
from .registry import register

SHORTCUT_DROPOUT = 0.5  # He 2016b, section 3.1, "Dropout shortcut"


@register("dropout_shortcut")
class DropoutShortcut(OptionallyNormed):
    """Drops half of the shortcut's channels in training.

    Formula:  y = dropout(x, 0.5) + F            Source: He 2016b, dropout shortcut
    """

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0, *, residual_norm: NormOption = "none") -> None:
        super().__init__(dim, dropout, residual_norm=residual_norm)
        self.shortcut_dropout = nn.Dropout(SHORTCUT_DROPOUT)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.shortcut_dropout(x) + f
