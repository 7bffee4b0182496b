"""Pre-norm with a second norm after the branch: Sandwich-LN, or Peri-LN."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .core.folding import Fold, affine
from .core.options import Options
from .core.place import Place
from .core.registry import Structure, register
from .pre_ln import PreLayerNorm


class SandwichLayerNorm(PreLayerNorm):
    """Normalises the input and the output of the branch.

    Formula:  y = x + LN_out(F), F = dropout(f(LN_in(x))); the stack ends with a norm
    Source:   Ding 2021, CogView (its division by max |x| is left out); Peri-LN, Kim 2025, is the same formula, and its
              optional norm on the embedding is fairseq's --layernorm-embedding
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.outer_norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + self.outer_norm(f)


def fold_sandwich(site: Any) -> Fold:
    """Fold x + LN_out(f(LN_in(x)))."""
    return Fold("pre_and_post_norm", (affine(site.norm), affine(site.outer_norm)))


register(
    "sandwich_ln",
    Structure(
        Options,
        SandwichLayerNorm,
        final_norm=True,
        folds=fold_sandwich,
        formula="x + LN(F), F from f(LN(x))",
        source="CogView 2021",
        family="Norms",
        use_when="Pre-norm models whose activations grow too large for fp16.",
    ),
    "peri_ln",
)
