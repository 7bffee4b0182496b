"""Post-norm layers with a bottom-to-top connection: B2T."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, Structure, register
from .post_ln import PostLayerNorm


class BottomToTop(PostLayerNorm):
    """Adds the input of a layer to the input of its last norm.

    Formula:  `post_ln`; a layer's last norm also sees the layer's input
    Where:    at the last site of a layer LN(x + F + x_layer), x_layer the input of the layer
    Source:   Takase 2022, B2T connection, eq. 9, and the authors' code (takase/b2t_connection, transformer_layer.py)
    Start:    the weights of all sublayers, but not the biases, are multiplied by (layers of the stack)^(-1/2), as in
              the code
    State:    (..., 2C) within a layer: x, then x_layer; (..., C) between layers
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.is_last, self.most_width = place.last, 2 * place.dim
        self.scale = place.depth(place.stack) ** -0.5

    def branch_input(self, state: Tensor) -> Tensor:
        return state[..., : self.dim]

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        x, bottom = state[..., : self.dim], state[..., -self.dim :]  # both are x at the first site
        if self.is_last:
            return self.norm(x + f + bottom)
        y = self.norm(x + f)
        return torch.cat([y, bottom.to(y.dtype)], dim=-1)

    def init_branch(self, **linears: nn.Linear | nn.Conv2d) -> None:
        with torch.no_grad():
            for linear in linears.values():
                linear.weight.mul_(self.scale)


register(
    "b2t",
    Structure(
        Options,
        BottomToTop,
        family="Depth",
        use_when="Post-norm models with more layers than `post_ln` can train.",
    ),
)
