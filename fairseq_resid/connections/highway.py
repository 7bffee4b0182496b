"""A gate that interpolates between shortcut and branch: Highway networks, or He 2016b's exclusive gating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .core.options import InvalidOption, option
from .core.registry import Structure, register
from .sas import ScalingGate, SingleLayerGate
from .shortcut_gate import GatedShortcut, GateOptions


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
