"""Two streams, one normalised and one not: ResiDual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .core import Options, Place, ResidualStream, Structure, register
from .post_ln import PostLayerNorm

EXIT_EPS = 1e-7  # eps of the final norm, as in the authors' code


class ResiDual(PostLayerNorm):
    """Keeps a post-norm stream, which the branches see, and the plain sum of all branches.

    Formula:  x' = LN(x + F), d' = d + F; at the end x + LN(d)
    Where:    F = dropout(f(x)); d starts as x
    Source:   Xie 2023, ResiDual, and the authors' code (microsoft/ResiDual, resi_dual_layers.py) with scales of 1
    State:    (..., 2C): x, then d
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.least_width = self.most_width = 2 * place.dim

    def enter(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1) if x.size(-1) == self.dim else x

    def branch_input(self, state: Tensor) -> Tensor:
        return state[..., : self.dim]

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        x, d = state[..., : self.dim], state[..., self.dim :]
        y = self.norm(x + f)
        # Under autocast, the branch is 16-bit, but the streams are not.
        return torch.cat([y, (d + f).to(y.dtype)], dim=-1)


class ResiDualStream(ResidualStream):
    """Ends a ResiDual stack.

    Formula:  x + LN(d), affine, eps 1e-7 for LayerNorm
    """

    def __init__(self, place: Place, options: Options, final_norm: bool) -> None:
        super().__init__(place, options, final_norm=False)
        self.make_norm()
        self.eps = EXIT_EPS

    def leave(self, state: Tensor) -> Tensor:
        x = state[..., : self.dim]
        d = x if state.size(-1) == self.dim else state[..., self.dim :]
        return x + self.normalise(d)


register(
    "resi_dual",
    Structure(
        Options,
        ResiDual,
        ResiDualStream,
        final_norm=None,
        family="Several streams",
        use_when="Deep stacks that should keep a post-norm output and the gradients of a pre-norm stack.",
    ),
)
