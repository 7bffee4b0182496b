"""Shortcuts behind a gate over x: Highway networks (He 2016b's exclusive gating) and shortcut-only gating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .base import xavier_uniform
from .optional_norm import OptionallyNormed, OptionalNorm
from .options import option
from .place import Place
from .registry import Structure, register


@dataclass(frozen=True)
class GateOptions(OptionalNorm):
    """Of a gated shortcut."""

    gate_bias: float = option(-1.0, "start value of the gate's bias; negative favours the shortcut")


class GatedShortcut(OptionallyNormed):
    """Holds the gate σ(xW + b), W in R^{C×C}, Xavier-uniform."""

    def __init__(self, place: Place, options: GateOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        # Bare parameters, not nn.Linear: fairseq's quantisation replaces every nn.Linear, and gates are not for it.
        self.gate_weight = nn.Parameter(xavier_uniform(place.dim, place.dim))
        self.gate_bias = nn.Parameter(torch.full((place.dim,), options.gate_bias))


class Highway(GatedShortcut):
    """Interpolates between shortcut and branch.

    Formula:  y = (1 - t) x + t F, t = σ(xW + b)
    Source:   Srivastava 2015; He 2016b's exclusive gating is the same formula
    """

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        # Not torch.lerp: under autocast x can be fp32 and F 16-bit, and lerp does not promote.
        return x + torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias)) * (f - x)


class ShortcutGate(GatedShortcut):
    """Gates the shortcut alone.

    Formula:  y = (1 - g) x + F, g = σ(xW + b)            Source: He 2016b, shortcut-only gating
    """

    def join(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, 1 - torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias)), x)


register("highway", Structure(GateOptions, Highway), "exclusive_gate")
register("shortcut_gate", Structure(GateOptions, ShortcutGate))
