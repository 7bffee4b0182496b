"""A gate on the shortcut alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .core import Place, Structure, option, register
from .core.optional_norm import OptionallyNormed, OptionalNorm
from .core.tensors import xavier_uniform


@dataclass(frozen=True)
class GateOptions(OptionalNorm):
    """Options of a gated shortcut."""

    gate_bias: float = option(
        -1.0, "initial value of the gate's bias; negative favours the shortcut", example=-2, is_initial=True
    )


class ShortcutGate(OptionallyNormed):
    """Gates the shortcut alone.

    Formula:  (1−g)x + F, g = σ(xW + b)
    Source:   He 2016b, shortcut-only gating
    Start:    W in R^{C×C} Xavier-uniform
    """

    def __init__(self, place: Place, options: GateOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        # These are bare parameters, because fairseq's quantisation would replace an nn.Linear.
        self.gate_weight = nn.Parameter(xavier_uniform(place.dim, place.dim))
        self.gate_bias = nn.Parameter(torch.full((place.dim,), options.gate_bias))

    def gated(self, x: Tensor) -> Tensor:
        """Return g, (..., C)."""
        return torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias))

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, 1 - self.gated(x), x)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"g": self.gated(x)}


register(
    "shortcut_gate",
    Structure(
        GateOptions,
        ShortcutGate,
        has_norm=GateOptions.has_norm,
        family="Gates",
        use_when="Reproducing He 2016b: the effect of a gate on the shortcut alone.",
    ),
)
