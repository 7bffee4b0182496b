"""Pre-norm with a second norm after the branch: Sandwich-LN, or Peri-LN."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core import Fold, Options, Place, Structure, register
from .core.folding import affine
from .pre_ln import PreLayerNorm


class SandwichLayerNorm(PreLayerNorm):
    """Normalises the input and the output of the branch.

    Formula:  x + LN(F), F from f(LN(x))
    Where:    the two norms have their own weights
    Source:   Ding 2021 (CogView), whose division by max |x| is left out; Peri-LN, Kim 2025, is the same formula, and
              its optional norm on the embedding is fairseq's --layernorm-embedding
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.outer_norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + self.outer_norm(f)


def fold(site: Any) -> Fold:
    """Fold x + LN_out(f(LN_in(x)))."""
    return Fold("pre_and_post_norm", (affine(site.norm), affine(site.outer_norm)))


register(
    "sandwich_ln",
    Structure(
        Options,
        SandwichLayerNorm,
        final_norm=True,
        folds=fold,
        family="Norms",
        use_when="Pre-norm models whose activations grow too large for fp16.",
    ),
    "peri_ln",
)
