"""A shortcut that is scaled down without scaling its gradient: gradient-preserving activation scaling (GPAS)."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .core import Options, Place, ResidualConnection, Structure, register
from .pre_ln import PreLayerNorm


class GradientPreservingScaling(PreLayerNorm):
    """Scales the sum of shortcut and branch by a learned number, but not its gradient.

    Formula:  x + F, scaled by 1 − SiLU(g) except for its gradient, F from f(LN(x))
    Where:    g in R, one for all sublayers of a layer; SiLU(g) times the sum is subtracted without its gradient
    Source:   Chen 2025, GPAS, arXiv 2506.22049, and the authors' code (dandingsky/GPAS, modeling_llama.py, norm type
              pre_gpas), which uses RMSNorm. Not implemented: GPAS on structures other than pre_ln, and clipping of the
              gradient of g
    Start:    g = 0, which is pre_ln
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.scaling_gate = nn.Parameter(torch.zeros(()))

    def share(self, first: ResidualConnection) -> None:
        self.scaling_gate = cast(GradientPreservingScaling, first).scaling_gate

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        total = x + f
        return torch.addcmul(total, functional.silu(self.scaling_gate), total.detach(), value=-1.0)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"scale": 1 - functional.silu(self.scaling_gate)}


register(
    "gpas",
    Structure(
        Options,
        GradientPreservingScaling,
        final_norm=True,
        family="Scaling",
        use_when="Deep pre-norm models whose activations grow with depth.",
    ),
)
