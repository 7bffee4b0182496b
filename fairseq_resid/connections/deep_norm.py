"""A post-norm structure that scales the shortcut by a factor that grows with depth: DeepNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .core import Fold, Options, Place, Structure, register
from .core.folding import affine
from .post_ln import PostLayerNorm


def deep_norm_scales(place: Place) -> tuple[float, float]:
    """Return DeepNorm's α and β for a stack; `DeepNorm` states the formulas."""
    if "encoder" not in place.depths or not place.depths.get("decoder"):
        place.require_depths()
        alone = sum(place.depths.values())  # the stages of an image model count as one stack
        return (2 * alone) ** 0.25, (8 * alone) ** -0.25
    n, m = place.depth("encoder"), place.depth("decoder")
    if place.stack == "decoder":
        return (3 * m) ** 0.25, (12 * m) ** -0.25
    return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)


class DeepNorm(PostLayerNorm):
    """Normalises the sum of a scaled shortcut and the branch. In deeper stacks, the scale α is larger and the branch's
    initial weights are smaller.

    Formula:  LN(αx + F), α and initialisation by depth
    Where:    α = 0.81 (N⁴M)^(1/16) and β = 0.87 (N⁴M)^(-1/16) in the encoder of a model with N encoder and M decoder
              layers, α = (3M)^(1/4) and β = (12M)^(-1/4) in its decoder; α = (2N)^(1/4) and β = (8N)^(-1/4) in a model
              that has only one stack, of N layers
    Source:   Wang 2022, DeepNet, section 3 and table 1
    Start:    Xavier-normal, with gain β for value, output and feed-forward and 1 for query and key; biases unchanged
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.alpha, self.beta = deep_norm_scales(place)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return self.norm(torch.add(f, x, alpha=self.alpha))

    def init_branch(self, **linears: nn.Linear | nn.Conv2d) -> None:
        for name, linear in linears.items():
            nn.init.xavier_normal_(linear.weight, gain=1.0 if name in ("query", "key") else self.beta)


def fold(site: Any) -> Fold:
    """Fold LN(αx + F)."""
    return Fold("post_norm", (affine(site.norm),), shortcut=site.alpha)


register(
    "deep_norm",
    Structure(
        Options,
        DeepNorm,
        folds=fold,
        family="Scaling",
        use_when="Deep post-norm models, without added parameters and at almost no cost in speed.",
    ),
)
