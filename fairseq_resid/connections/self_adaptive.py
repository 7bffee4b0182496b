"""Self-Adaptive Scaling (SAS): gates decide how much shortcut, branch and normalised sum to keep."""

from __future__ import annotations

import math
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn

from ..ops import (
    dense_gate,
    fused_self_adaptive_scaling,
    scaling_gate,
    self_adaptive_scaling,
    single_layer_gate,
)
from .base import ResidualConnection, invalid, layer_norm, xavier_uniform
from .registry import register


class ScalingGate(nn.Module):
    """Predicts G scalars per position from shortcut and branch, through a hidden layer.

    Formula:  S_g(x, F) = tanh([x;F] W_f + b_f) W_ff + b_ff            Source: SAS paper, eq. 2
    Shapes:   x, f: (T, B, C) -> (T, B, G)
    The gates of a site are stored as one hidden weight (G·C, 2C) and one output weight (G, C), so that they cost one
    GEMM; each gate is initialised Xavier-uniform by its own fans (2C -> C, C -> 1), b_f = 0, b_ff = `biases`.
    """

    def __init__(self, dim: int, biases: list[float]) -> None:
        super().__init__()
        gates = len(biases)
        self.hidden_weight = nn.Parameter(torch.cat([xavier_uniform(dim, 2 * dim) for _ in range(gates)]))
        self.hidden_bias = nn.Parameter(torch.zeros(gates * dim))
        self.output_weight = nn.Parameter(torch.cat([xavier_uniform(1, dim) for _ in range(gates)]))
        self.output_bias = nn.Parameter(torch.tensor(biases))

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return scaling_gate(x, f, self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias)


class SingleLayerGate(nn.Module):
    """Predicts G scalars per position from shortcut and branch, by one linear map.

    Formula:  S_g(x, F) = [x;F] W_f + b_f            Source: SAS paper, table 6, "Single Layer"
    Shapes:   x, f: (T, B, C) -> (T, B, G)
    """

    def __init__(self, dim: int, biases: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([xavier_uniform(1, 2 * dim) for _ in biases]))
        self.bias = nn.Parameter(torch.tensor(biases))

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return single_layer_gate(x, f, self.weight, self.bias)


class TransformGate(nn.Module):
    """Predicts G vectors per position from the shortcut alone, as a Highway network does.

    Formula:  T_g(x) = x W + b, W in R^{C×C}            Source: SAS paper, table 6, "Transform Gate"
    Shapes:   x, f: (T, B, C) -> (T, B, G·C); f is not used
    """

    def __init__(self, dim: int, biases: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([xavier_uniform(dim, dim) for _ in biases]))
        self.bias = nn.Parameter(torch.tensor(biases).repeat_interleave(dim))

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return dense_gate(x, self.weight, self.bias)


GATES = {"full": ScalingGate, "single": SingleLayerGate, "transform": TransformGate}


@register("sas")
class SelfAdaptiveScaling(ResidualConnection):
    """Weighs shortcut, branch and their normalised sum by gates that read both.

    Formula:  y = α x + β F + γ LN(x + F);  α = σ(S_α), β = σ(S_β);
              γ = (1 - α)(1 - β) (coupled, eq. 4) or σ(S_γ) (free, eq. 3)
    Source:   SAS paper, eq. 2 to 4. The special cases of its table 2 hold as identities of eq. 4.
    The gates see F after dropout. `sas_alpha_bias` and `sas_beta_bias` start the gate's last bias (b_ff; b_f of the
    single-layer gate, b of the transform gate); the γ gate of `free` starts at 0.
    """

    def __init__(
        self,
        dim: int,
        dropout: nn.Module | float = 0.0,
        *,
        sas_gate: Annotated[Literal["full", "single", "transform"], "form of the gate (SAS paper, table 6)"] = "full",
        sas_gamma: Annotated[Literal["coupled", "free"], "γ = (1-α)(1-β), or a third gate"] = "coupled",
        sas_alpha_bias: Annotated[float, "start value of α's bias; the paper has 3 for images"] = 0.0,
        sas_beta_bias: Annotated[float, "start value of β's bias; the paper has -3 for images"] = 0.0,
    ) -> None:
        super().__init__(dim, dropout)
        if sas_gate not in GATES:
            raise invalid("sas_gate", sas_gate, f"choose one of {', '.join(GATES)}")
        if sas_gamma not in ("coupled", "free"):
            raise invalid("sas_gamma", sas_gamma, "choose one of coupled, free")
        for option, value in (("sas_alpha_bias", sas_alpha_bias), ("sas_beta_bias", sas_beta_bias)):
            if not math.isfinite(value):
                raise invalid(option, value, "must be a finite number")
        biases = [float(sas_alpha_bias), float(sas_beta_bias)]
        self.free_gamma = sas_gamma == "free"
        if self.free_gamma:
            biases.append(0.0)
        self.norm = layer_norm(dim)
        self.gate = GATES[sas_gate](dim, biases)
        self.gates = len(biases)
        self.has_kernel = sas_gate == "full" and sas_gamma == "coupled"

    def factors(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return α, β and γ, each (T, B, 1), or (T, B, C) from the transform gate."""
        values = torch.sigmoid(self.gate(x, f)).chunk(self.gates, dim=-1)
        alpha, beta = values[0], values[1]
        gamma = values[2] if self.free_gamma else (1 - alpha) * (1 - beta)
        return alpha, beta, gamma

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        alpha, beta, gamma = self.factors(x, f)
        return self_adaptive_scaling(x, f, alpha, beta, gamma, self.norm.weight, self.norm.bias, self.norm.eps)

    def combine_fused(self, x: Tensor, f_out: Tensor, p: float) -> Tensor:
        gate, norm = cast(ScalingGate, self.gate), self.norm
        return fused_self_adaptive_scaling(
            x, f_out, gate.hidden_weight, gate.hidden_bias, gate.output_weight, gate.output_bias,
            norm.weight, norm.bias, norm.eps, p,
        )  # fmt: skip
