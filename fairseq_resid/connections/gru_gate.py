"""A gated recurrent unit in place of the sum of shortcut and branch: GTrXL's gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .core import Options, Place, Structure, option, register
from .core.tensors import xavier_uniform
from .pre_ln import PreLayerNorm


@dataclass(frozen=True)
class GruOptions(Options):
    """Options of gru_gate."""

    gate_bias: float = option(
        -2.0, "initial value of the gate's bias; negative favours the shortcut", example=-1, is_initial=True
    )


class GruGate(PreLayerNorm):
    """Updates the shortcut with the branch as one step of a gated recurrent unit.

    Formula:  (1−z)x + z tanh(W ReLU(F) + U(r ⊙ x)), gates r and z from x and ReLU(F), F from f(LN(x))
    Where:    r = σ(W_r ReLU(F) + U_r x), z = σ(W_z ReLU(F) + U_z x + b)
    Source:   Parisotto 2019, GTrXL, arXiv 1910.06764; our b is the paper's -b_g. nn.GRUCell, which other packages use,
              is a different unit: it computes r ⊙ (U x), and has more biases
    Start:    b = -2, which favours the shortcut. The paper does not state how the matrices start. Ours are
              Xavier-uniform, as in RLlib's GTrXL
    """

    def __init__(self, place: Place, options: GruOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        c = place.dim
        # These are bare parameters, because fairseq's quantisation would replace an nn.Linear. One GEMM multiplies by
        # the W of r, z and tanh, and another by the U of r and z.
        self.branch_weight = nn.Parameter(torch.cat([xavier_uniform(c, c) for _ in range(3)]))
        self.shortcut_weight = nn.Parameter(torch.cat([xavier_uniform(c, c) for _ in range(2)]))
        self.candidate_weight = nn.Parameter(xavier_uniform(c, c))
        self.gate_bias = nn.Parameter(torch.full((c,), options.gate_bias))

    def gates(self, x: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and the tanh, each (..., C)."""
        of_r, of_z, of_h = functional.linear(torch.relu(f), self.branch_weight).chunk(3, -1)
        and_r, and_z = functional.linear(x, self.shortcut_weight).chunk(2, -1)
        r, z = torch.sigmoid(of_r + and_r), torch.sigmoid(of_z + and_z + self.gate_bias)
        return z, torch.tanh(of_h + functional.linear(r * x, self.candidate_weight))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        z, h = self.gates(x, f)
        return (1 - z) * x + z * h

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"z": self.gates(x, f)[0]}


register(
    "gru_gate",
    Structure(
        GruOptions,
        GruGate,
        final_norm=True,
        family="Gates",
        use_when="Models that are hard to train. The gate adds six C × C matrices to every site.",
    ),
)
