"""The end of a stack, which reduces the state to C channels and applies the final norm."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .norms import EPS, layer_norm
from .options import Options
from .place import Place


class ResidualStream(nn.Module):
    """Ends a stack whose output is its state, or LN of its state. A stack whose state is wider ends with a subclass.

    Formula:  x, or LN(x) with a final norm (--final-norm layer), affine, eps 1e-5, or another norm if the place has one
    Shapes:   (..., n·C) -> (..., C); also accepts (..., C), for a stack whose layers were all dropped
    Args:     place: of the stack, with kind "stream"; options: of the structure; final_norm: end with a norm
    A LayerNorm's parameters are called `weight` and `bias`, as in the `layer_norm` of a stack in fairseq's checkpoints.
    Any other norm is the submodule `norm`.
    """

    def __init__(self, place: Place, options: Options, final_norm: bool) -> None:
        super().__init__()
        self.place, self.options = place, options
        self.dim, self.eps = place.dim, EPS
        self.has_norm = final_norm
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        self.norm: nn.Module | None = None
        if final_norm:
            self.make_norm()

    def make_norm(self) -> None:
        """Create the parameters of the norm."""
        if self.place.norm is layer_norm:
            self.weight = nn.Parameter(torch.ones(self.dim))
            self.bias = nn.Parameter(torch.zeros(self.dim))
        else:
            self.norm = self.place.norm(self.dim)

    def leave(self, state: Tensor) -> Tensor:
        """Return C channels computed from the state: the output of the stack, before its final norm if it has one."""
        return state

    def normalise(self, x: Tensor) -> Tensor:
        """Return LN(x), or x normalised by the place's norm if that is not a LayerNorm."""
        if self.norm is not None:
            return self.norm(x)
        return functional.layer_norm(x, [self.dim], self.weight, self.bias, self.eps)

    def forward(self, state: Tensor) -> Tensor:
        """Return the output of the stack."""
        x = self.leave(state)
        return self.normalise(x) if self.has_norm else x

    def extra_repr(self) -> str:
        return f"{self.dim}, final_norm={'layer' if self.has_norm else 'none'}"
