"""Where a stack ends: from its state back to C channels, and the final norm."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .options import Options
from .place import EPS, Place


class ResidualStream(nn.Module):
    """The end of a stack whose state is its output; one per stack.

    Formula:  x, or LN(x) with a final norm (--final-norm layer), affine, eps 1e-5
    Shapes:   (..., n·C) -> (..., C); takes (..., C) too, if every layer was dropped
    Args:     place: of the stack, its kind "stream"; options: of the structure; final_norm: whether a norm ends it
    The norm's parameters are `weight` and `bias`, as fairseq's checkpoints name them in a stack's `layer_norm`.
    """

    def __init__(self, place: Place, options: Options, final_norm: bool) -> None:
        super().__init__()
        self.place, self.options = place, options
        self.shape, self.eps = [place.dim], EPS
        self.has_norm = final_norm
        self.weight = nn.Parameter(torch.ones(place.dim)) if final_norm else None
        self.bias = nn.Parameter(torch.zeros(place.dim)) if final_norm else None

    def leave(self, state: Tensor) -> Tensor:
        """Return C channels of a state, before the final norm."""
        return state

    def forward(self, state: Tensor) -> Tensor:
        """Return what the stack gives."""
        x = self.leave(state)
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps) if self.has_norm else x

    def extra_repr(self) -> str:
        return f"{self.place.dim}, final_norm={'layer' if self.has_norm else 'none'}"
