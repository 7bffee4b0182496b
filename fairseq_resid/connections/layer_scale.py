"""Variants of the pre-norm Transformer: other norms or scales around the branch, or post-norm in the first layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core.base import ResidualConnection
from .core.folding import Fold, affine
from .core.options import Options, option
from .core.place import Place
from .core.registry import Structure, register
from .pre_ln import PreLayerNorm


class LayerScale(PreLayerNorm):
    """Scales each channel of the branch by a learned factor that starts small.

    Formula:  y = x + s ⊙ f(LN(x)), s in R^C learned; the stack ends with a norm
    Source:   Touvron 2021, CaiT: s starts at 0.1 for up to 18 layers, at 1e-5 for 24, and at 1e-6 beyond. We use 1e-5
              for 19 to 23 layers too, which the paper does not state, and count the layers of the site's own stack.
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        layers = place.depth(place.stack)
        start = 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6
        self.branch_weight = nn.Parameter(torch.full((place.dim,), start))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.addcmul(x, self.branch_weight, f)

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"s": self.branch_weight}


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


class ResidualPostNorm(ResidualConnection):
    """Normalises only the output of the branch.

    Formula:  y = x + LN(F), F = dropout(f(x)); the stack ends with a norm
    Source:   OLMo 2, 2024, which uses RMSNorm
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + self.norm(f)


class ScaledPreLayerNorm(PreLayerNorm):
    """Scales the branch input down, more strongly in deeper layers.

    Formula:  y = x + f(LN(x) / √l), where l numbers the layers of a stack from 1; the norm that ends
              the stack is not scaled
    Source:   Sun 2025, LayerNorm Scaling
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        place.require_depths()
        self.scale = 1 / math.sqrt(place.layer + 1)

    def branch_input(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.scale


@dataclass(frozen=True)
class MixedOptions(Options):
    """Options of mix_ln."""

    post_share: float = option(
        0.25, "share of the layers, counted from the first, that use post-norm", above=0, most=1, example=0.5
    )


class MixedLayerNorm(ResidualConnection):
    """Uses post-norm in the first layers of a stack and pre-norm in the others.

    Formula:  y = LN(x + F) in the first share of the layers, x + f(LN(x)) in the rest; the stack ends with a norm
    Source:   Li 2024, Mix-LN: a share of 0.25 (3 of 12 and 6 of 24 layers); rounding up is our choice
    """

    def __init__(self, place: Place, options: MixedOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.is_post = place.layer < math.ceil(options.post_share * place.depth(place.stack))
        self.norm = place.norm(place.dim)

    def branch_input(self, x: Tensor) -> Tensor:
        return x if self.is_post else self.norm(x)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(x + f) if self.is_post else x + f


def fold_layer_scale(site: Any) -> Fold:
    """Fold x + s ⊙ f(LN(x))."""
    return Fold("pre_norm", (affine(site.norm),), branch=site.branch_weight.detach())


def fold_sandwich(site: Any) -> Fold:
    """Fold x + LN_out(f(LN_in(x)))."""
    return Fold("pre_and_post_norm", (affine(site.norm), affine(site.outer_norm)))


def fold_scaled(site: Any) -> Fold:
    """Fold x + f(LN(x) / √l)."""
    return Fold("pre_norm", (affine(site.norm, site.scale),))


register(
    "layer_scale",
    Structure(
        Options,
        LayerScale,
        final_norm=True,
        folds=fold_layer_scale,
        formula="x + s ⊙ f(LN(x)), s learned",
        source="Touvron 2021",
        family="Scaling",
        use_when="Deep pre-norm models whose branches should start small, especially image models.",
    ),
)
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
register(
    "res_post_norm",
    Structure(
        Options,
        ResidualPostNorm,
        final_norm=True,
        formula="x + LN(F)",
        source="OLMo 2, 2024",
        family="Norms",
        use_when="Models that need bounded branches and a shortcut without norms.",
    ),
)
register(
    "scaled_pre_ln",
    Structure(
        Options,
        ScaledPreLayerNorm,
        final_norm=True,
        folds=fold_scaled,
        formula="x + f(LN(x)/√l), l the layer",
        source="Sun 2025",
        family="Scaling",
        use_when="Deep pre-norm models whose last layers contribute too little.",
    ),
)
register(
    "mix_ln",
    Structure(
        MixedOptions,
        MixedLayerNorm,
        same_as=lambda options: "post_ln" if options.post_share == 1 else None,
        final_norm=True,
        formula="`post_ln` in the first layers, `pre_ln` in the others",
        source="Li 2024",
        family="Norms",
        use_when="A compromise between `post_ln` and `pre_ln`.",
    ),
)
