"""A gate on the shortcut alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .core.base import xavier_uniform
from .core.optional_norm import OptionallyNormed, OptionalNorm
from .core.options import option
from .core.place import Place
from .core.registry import Structure, register


@dataclass(frozen=True)
class GateOptions(OptionalNorm):
    """Options of a gated shortcut."""

    gate_bias: float = option(
        -1.0, "initial value of the gate's bias; negative favours the shortcut", example=-2, is_initial=True
    )


class GatedShortcut(OptionallyNormed):
    """Provides the gate σ(xW + b), with a Xavier-uniform W in R^{C×C}. A subclass may replace this gate."""

    def __init__(self, place: Place, options: GateOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.gate = self.other_gate(place.dim, options)
        if self.gate is None:
            # These are bare parameters, because fairseq's quantisation would replace an nn.Linear.
            self.gate_weight = nn.Parameter(xavier_uniform(place.dim, place.dim))
            self.gate_bias = nn.Parameter(torch.full((place.dim,), options.gate_bias))

    def other_gate(self, dim: int, options: Any) -> nn.Module | None:
        """Return a module that computes the gate's logits from x and F; None for the default gate."""
        return None

    def gated(self, x: Tensor, f: Tensor) -> Tensor:
        """Return the gate: (..., C), or (..., 1) for a scalar gate."""
        if self.gate is not None:
            return torch.sigmoid(self.gate(x, f))
        return torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias))


class ShortcutGate(GatedShortcut):
    """Gates the shortcut alone.

    Formula:  y = (1 - g) x + F, g = σ(xW + b)            Source: He 2016b, shortcut-only gating
    """

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, 1 - self.gated(x, f), x)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"g": self.gated(x, f)}


register(
    "shortcut_gate",
    Structure(
        GateOptions,
        ShortcutGate,
        has_norm=GateOptions.has_norm,
        formula="(1−g)x + F, g = σ(xW + b)",
        source="He 2016b",
        family="Gates",
        use_when="Reproducing He 2016b: the effect of a gate on the shortcut alone.",
    ),
)
