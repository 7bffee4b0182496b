"""Shortcuts behind a gate over x: Highway networks (He 2016b's exclusive gating) and shortcut-only gating."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from ..ops import dense_gate
from .base import invalid, xavier_uniform
from .optional_norm import NormOption, OptionallyNormed
from .registry import register


class GatedShortcut(OptionallyNormed):
    """Holds the gate σ(xW + b), W in R^{C×C}, Xavier-uniform."""

    def __init__(
        self,
        dim: int,
        dropout: nn.Module | float = 0.0,
        *,
        gate_bias: Annotated[float, "start value of the gate's bias; negative favours the shortcut"] = -1.0,
        residual_norm: NormOption = "none",
    ) -> None:
        super().__init__(dim, dropout, residual_norm=residual_norm)
        if not math.isfinite(gate_bias):
            raise invalid("gate_bias", gate_bias, "must be a finite number")
        # Bare parameters, not nn.Linear: fairseq's quantisation replaces every nn.Linear, and gates are not for it.
        self.gate_weight = nn.Parameter(xavier_uniform(dim, dim))
        self.gate_bias = nn.Parameter(torch.full((dim,), float(gate_bias)))


@register("highway", "exclusive_gate")
class Highway(GatedShortcut):
    """Interpolates between shortcut and branch.

    Formula:  y = (1 - t) x + t F, t = σ(xW + b)
    Source:   Srivastava 2015; He 2016b's exclusive gating is the same formula
    """

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        # Not torch.lerp: under autocast x can be fp32 and F 16-bit, and lerp does not promote.
        return x + torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias)) * (f - x)


@register("shortcut_gate")
class ShortcutGate(GatedShortcut):
    """Gates the shortcut alone.

    Formula:  y = (1 - g) x + F, g = σ(xW + b)            Source: He 2016b, shortcut-only gating
    """

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(f, 1 - torch.sigmoid(dense_gate(x, self.gate_weight, self.gate_bias)), x)
