"""Gated shortcuts: Highway networks (He 2016b's exclusive gating) and shortcut-only gating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .core.base import xavier_uniform
from .core.optional_norm import OptionallyNormed, OptionalNorm
from .core.options import InvalidOption, option
from .core.place import Place
from .core.registry import Structure, register
from .sas import ScalingGate, SingleLayerGate


@dataclass(frozen=True)
class GateOptions(OptionalNorm):
    """Options of a gated shortcut."""

    gate_bias: float = option(
        -1.0, "initial value of the gate's bias; negative favours the shortcut", example=-2, is_initial=True
    )


@dataclass(frozen=True)
class HighwayOptions(GateOptions):
    """Options of highway."""

    gate_input: str = option(
        "shortcut",
        "input of the gate. shortcut: a vector gate, computed from x; both: a scalar gate, computed from x and F",
        choices=("shortcut", "both"),
    )
    gate_layers: int = option(1, "number of layers of the gate; 2 needs --gate-input both", least=1, most=2, example=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gate_layers == 2 and self.gate_input == "shortcut":
            raise InvalidOption("gate_layers", 2, "needs {others}", {"gate_input": "both"})


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


class Highway(GatedShortcut):
    """Interpolates between shortcut and branch.

    Formula:  y = (1 - t) x + t F; t = σ(xW + b), or with --gate-input both t = σ([x;F] W + b), W in R^{2C×1}, and with
              --gate-layers 2 t = σ(tanh([x;F] W_f + b_f) W_ff + b_ff), SAS's gate
    Source:   Srivastava 2015; He 2016b's exclusive gating is the same formula. The gate of x and F is our reading
              of the SAS paper's table 6, which does not say how its gates combine x and F.
    """

    def other_gate(self, dim: int, options: Any) -> nn.Module | None:
        if options.gate_input == "shortcut":
            return None
        return (SingleLayerGate if options.gate_layers == 1 else ScalingGate)(dim, [options.gate_bias])

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        # Not torch.lerp, which does not promote dtypes: under autocast, x can be fp32 and F 16-bit.
        return x + self.gated(x, f) * (f - x)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"t": self.gated(x, f)}


class ShortcutGate(GatedShortcut):
    """Gates the shortcut alone.

    Formula:  y = (1 - g) x + F, g = σ(xW + b)            Source: He 2016b, shortcut-only gating
    """

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, 1 - self.gated(x, f), x)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"g": self.gated(x, f)}


register(
    "highway",
    Structure(
        HighwayOptions,
        Highway,
        has_norm=HighwayOptions.has_norm,
        formula="(1−t)x + tF, t = σ(xW + b), or a gate of x and F",
        source="Srivastava 2015",
        family="Gates",
        use_when="The classic gated baseline for `sas`.",
    ),
    "exclusive_gate",
)
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
