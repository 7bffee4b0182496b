"""Two streams with shared branches, one pre-norm and one post-norm: SiameseNorm."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .core import Options, Place, ResidualConnection, ResidualStream, Structure, register


def two_streams(state: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return x and y of a state (..., 2C), or of the input of a stack (..., C)."""
    x = state[..., :dim]
    return x, (x if state.size(-1) == dim else state[..., dim:])


class Siamese(ResidualConnection):
    """Adds each branch to a normalised stream and to an unnormalised one; the branch sees both.

    Formula:  x' = LN(x) + F/√(2l), l the layer; y' = y + F; F from f(LN(LN(x) + LN(y)))
    Where:    l counts from 1; LN(x) is the same in both places, and the three norms of a site have their own weights;
              a stack ends with LN(LN(x) + LN(y)), with three further norms; both streams start as its input
    Source:   Li 2026, SiameseNorm, arXiv 2602.08064, and the authors' code (Qwen-Applications/SiameseNorm,
              deit-model-siamesenorm.py). The 2 is the number of sublayers in the paper's layers; we also use 2 in
              decoders, whose layers have three sublayers
    State:    (..., 2C): x, then y
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        place.require_depths()
        self.least_width = self.most_width = 2 * place.dim
        self.scale = 1 / math.sqrt(2 * (place.layer + 1))
        self.norm, self.post_norm, self.pre_norm = (place.norm(place.dim) for _ in range(3))

    def enter(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1) if x.size(-1) == self.dim else x

    def branch_input(self, state: Tensor) -> Tensor:
        x, y = two_streams(state, self.dim)
        return self.norm(self.post_norm(x) + self.pre_norm(y))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        x, y = two_streams(state, self.dim)
        x = torch.add(self.post_norm(x), f, alpha=self.scale)
        # Under autocast, the branch is 16-bit, but the streams are not.
        return torch.cat([x, (y + f).to(x.dtype)], dim=-1)


class SiameseStream(ResidualStream):
    """Ends a SiameseNorm stack.

    Formula:  LN(LN_x(x) + LN_y(y))
    """

    def __init__(self, place: Place, options: Options, final_norm: bool) -> None:
        super().__init__(place, options, final_norm=True)
        self.post_norm, self.pre_norm = place.norm(place.dim), place.norm(place.dim)

    def leave(self, state: Tensor) -> Tensor:
        x, y = two_streams(state, self.dim)
        return self.post_norm(x) + self.pre_norm(y)


register(
    "siamese",
    Structure(
        Options,
        Siamese,
        SiameseStream,
        final_norm=None,
        family="Several streams",
        use_when="According to its paper, as stable as pre-norm and as good as post-norm, with a state twice as wide.",
    ),
)
