"""The end of a stack: from its state back to C channels, and the final norm."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .options import Options
from .place import EPS, Place


class ResidualStream(nn.Module):
    """Ends a stack whose state is its output. Each stack has one.

    Formula:  x, or LN(x) with a final norm (--final-norm layer), affine, eps 1e-5
    Shapes:   (..., n·C) -> (..., C); also accepts (..., C), for a stack whose layers were all dropped
    Args:     place: of the stack, with kind "stream"; options: of the structure; final_norm: whether it has a norm
    The norm's parameters are called `weight` and `bias`, as in the `layer_norm` of a stack in fairseq's checkpoints.
    """

    def __init__(self, place: Place, options: Options, final_norm: bool) -> None:
        super().__init__()
        self.place, self.options = place, options
        self.shape, self.eps = [place.dim], EPS
        self.has_norm = final_norm
        self.weight = nn.Parameter(torch.ones(place.dim)) if final_norm else None
        self.bias = nn.Parameter(torch.zeros(place.dim)) if final_norm else None

    def leave(self, state: Tensor) -> Tensor:
        """Return the C channels of the state that the final norm sees."""
        return state

    def forward(self, state: Tensor) -> Tensor:
        """Return the output of the stack."""
        x = self.leave(state)
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps) if self.has_norm else x

    def extra_repr(self) -> str:
        return f"{self.place.dim}, final_norm={'layer' if self.has_norm else 'none'}"
