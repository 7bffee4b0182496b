"""Self-Adaptive Scaling (SAS): gates decide how much of the shortcut, the branch and their normalised sum to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import dense_gate, scaling_gate, single_layer_gate
from .core import Options, Place, Structure, option, register
from .core.tensors import xavier_uniform
from .post_ln import PostLayerNorm


class ScalingGate(nn.Module):
    """Predicts G scalars per position from shortcut and branch, through a hidden layer.

    Formula:  S_g(x, F) = tanh([x;F] W_f + b_f) W_ff + b_ff
    Source:   SAS paper, eq. 2
    Shapes:   x, f: (T, B, C) -> (T, B, G)
    The gates of a site share one hidden weight (G·C, 2C) and one output weight (G, C), so that they share their GEMMs.
    The weights of each gate start Xavier-uniform with the gate's own fans (2C -> C, C -> 1), b_f starts at 0, and b_ff
    at `biases`.
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


class LinearGate(nn.Module):
    """Predicts G scalars per position from shortcut and branch, or G vectors from the shortcut, with one linear map.

    Formula:  S_g(x, F) = [x;F] W_f + b_f with `reads_branch`; otherwise T_g(x) = x W + b, W in R^{C×C}, as in Highway
              networks
    Source:   SAS paper, table 6, "Single Layer" and "Transform Gate"
    Shapes:   x, f: (T, B, C) -> (T, B, G), or (T, B, G·C) without `reads_branch`
    """

    def __init__(self, dim: int, biases: list[float], reads_branch: bool) -> None:
        super().__init__()
        self.reads_branch = reads_branch
        rows, columns = (1, 2 * dim) if reads_branch else (dim, dim)
        self.weight = nn.Parameter(torch.cat([xavier_uniform(rows, columns) for _ in biases]))
        self.bias = nn.Parameter(torch.tensor(biases).repeat_interleave(rows))

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        if self.reads_branch:
            return single_layer_gate(x, f, self.weight, self.bias)
        return dense_gate(x, self.weight, self.bias)


@dataclass(frozen=True)
class ScalingOptions(Options):
    """Options of sas."""

    sas_gate: str = option("full", "form of the gate (SAS paper, table 6)", choices=("full", "single", "transform"))
    sas_gamma: str = option("coupled", "γ = (1-α)(1-β), or a third gate", choices=("coupled", "free"))
    sas_alpha_bias: float = option(
        3.0, "initial value of α's bias, as in the paper for images", example=0, is_initial=True
    )
    sas_beta_bias: float = option(
        -3.0, "initial value of β's bias, as in the paper for images", example=0, is_initial=True
    )


class SelfAdaptiveScaling(PostLayerNorm):
    """Weights the shortcut, the branch and their normalised sum with gates computed from shortcut and branch.

    Formula:  αx + βF + (1−α)(1−β)·LN(x + F), α and β gates
    Where:    α = σ(S_α), β = σ(S_β), each from its own S(x, F) = tanh([x;F] W_f + b_f) W_ff + b_ff; --sas-gate single:
              S(x, F) = [x;F] W_f + b_f; --sas-gate transform: S(x) = x W + b, a vector; --sas-gamma free: σ(S_γ)
              instead of (1−α)(1−β) (eq. 3). The gates see F after dropout
    Source:   Liu 2019 (SAS), eq. 2 to 4. The special cases of its table 2 hold as identities of eq. 4.
    Start:    `sas_alpha_bias` and `sas_beta_bias` are the initial values of the last bias of each gate (b_ff; b_f of
              the single-layer gate, b of the transform gate). With `free`, the bias of the γ gate starts at 0. The
              defaults, 3 and -3, are the paper's for images: α starts near 0.95 and β near 0.05. The paper states
              no values for translation, where the default was 0 before version 1.0.
    """

    def __init__(self, place: Place, options: ScalingOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.free_gamma = options.sas_gamma == "free"
        biases = [options.sas_alpha_bias, options.sas_beta_bias, *([0.0] if self.free_gamma else [])]
        self.gate: nn.Module
        if options.sas_gate == "full":
            self.gate = ScalingGate(place.dim, biases)
        else:
            self.gate = LinearGate(place.dim, biases, reads_branch=options.sas_gate == "single")
        self.gates = len(biases)

    def factors(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return α, β and γ, (T, B, 1) each, or (T, B, C) for the transform gate."""
        values = torch.sigmoid(self.gate(x, f)).chunk(self.gates, dim=-1)
        alpha, beta = values[0], values[1]
        gamma = values[2] if self.free_gamma else (1 - alpha) * (1 - beta)
        return alpha, beta, gamma

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        alpha, beta, gamma = self.factors(x, f)
        # The norm is computed first, as in version 0.3: the order of operations determines the order in which
        # gradients are summed.
        normalised = self.norm(x + f)
        return torch.addcmul(torch.addcmul(alpha * x, beta, f), gamma, normalised)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return dict(zip(("alpha", "beta", "gamma"), self.factors(x, f), strict=True))


register(
    "sas",
    Structure(
        ScalingOptions,
        SelfAdaptiveScaling,
        family="Gates",
        use_when="If the scaling should depend on the input, and half as many parameters again are acceptable. "
        "At learning rates of 4e-3 and more, its gradient can explode, also with `--clip-norm 1`; "
        "`fairseq-resid train` warns.",
    ),
)
