"""A gate that interpolates between shortcut and branch: Highway networks, or He 2016b's exclusive gating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .core import InvalidOption, Place, Structure, option, register
from .core.optional_norm import OptionallyNormed
from .core.tensors import xavier_uniform
from .sas import LinearGate, ScalingGate
from .shortcut_gate import GateOptions


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


class Highway(OptionallyNormed):
    """Interpolates between shortcut and branch.

    Formula:  (1−t)x + tF, t = σ(xW + b), or a gate of x and F
    Where:    with --gate-input both t = σ([x;F] W + b), W in R^{2C×1}; with --gate-layers 2
              t = σ(tanh([x;F] W_f + b_f) W_ff + b_ff), SAS's gate
    Source:   Srivastava 2015; He 2016b's exclusive gating is the same formula. The gate of x and F is our reading
              of the SAS paper's table 6, which does not say how its gates combine x and F.
    Start:    W in R^{C×C} Xavier-uniform
    """

    def __init__(self, place: Place, options: HighwayOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.gate: nn.Module | None = None
        if options.gate_input == "shortcut":
            # These are bare parameters, because fairseq's quantisation would replace an nn.Linear.
            self.gate_weight = nn.Parameter(xavier_uniform(place.dim, place.dim))
            self.gate_bias = nn.Parameter(torch.full((place.dim,), options.gate_bias))
        elif options.gate_layers == 1:
            self.gate = LinearGate(place.dim, [options.gate_bias], reads_branch=True)
        else:
            self.gate = ScalingGate(place.dim, [options.gate_bias])

    def gated(self, x: Tensor, f: Tensor) -> Tensor:
        """Return t: (..., C), or (..., 1) for a gate of x and F."""
        return torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias) if self.gate is None else self.gate(x, f))

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        # Not torch.lerp, which does not promote dtypes: under autocast, x can be fp32 and F 16-bit.
        return x + self.gated(x, f) * (f - x)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"t": self.gated(x, f)}


register(
    "highway",
    Structure(
        HighwayOptions,
        Highway,
        has_norm=HighwayOptions.has_norm,
        family="Gates",
        use_when="The classic gated baseline for `sas`.",
    ),
    "exclusive_gate",
)
