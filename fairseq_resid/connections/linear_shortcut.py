"""A linear map on the shortcut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .core import Place, Structure, register
from .core.optional_norm import OptionallyNormed, OptionalNorm
from .core.tensors import xavier_uniform


class LinearShortcut(OptionallyNormed):
    """Adds the branch to a linear map of the shortcut.

    Formula:  Wx + b + F
    Source:   He 2016b, 1×1 convolution
    Start:    W in R^{C×C} Xavier-uniform, b = 0
    Dtype:    that of x; under autocast, Wx + b is computed in 16 bits
    """

    def __init__(self, place: Place, options: OptionalNorm, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.shortcut_weight = nn.Parameter(xavier_uniform(place.dim, place.dim))
        self.shortcut_bias = nn.Parameter(torch.zeros(place.dim))

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return dense_gate(x, self.shortcut_weight, self.shortcut_bias).to(x.dtype) + f


register(
    "linear_shortcut",
    Structure(
        OptionalNorm,
        LinearShortcut,
        has_norm=OptionalNorm.has_norm,
        family="Scaling",
        use_when="Reproducing He 2016b. In Transformers without `--residual-norm layer` it diverges.",
    ),
)
