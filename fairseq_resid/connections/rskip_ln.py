"""Recursive skip connection with layer normalisation: rSkip+LN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core import CannotFold, Fold, Options, Place, Structure, option, register
from .core.folding import as_post_norm
from .core.norms import divisor
from .post_ln import PostLayerNorm


@dataclass(frozen=True)
class RecursiveOptions(Options):
    """Options of rskip_ln."""

    skip_lambda: int = option(2, "number of times λ >= 1 that the shortcut is added", least=1, most=100, example=3)


class RecursiveSkipLayerNorm(PostLayerNorm):
    """Adds the shortcut and normalises, λ times in a row.

    Formula:  y₁ = LN₁(x + F); y_k = LN_k(x + y_{k−1}), k = 2..λ
    Where:    λ = 1 is `post_ln`. Effective ratio of x to F: 1 + Σ_{i=1}^{λ-1} Π_{j≤i} σ_j / w_j
              (the paper prints λ as the upper limit, which contradicts its eq. 6 and the unrolled formula). σ is the
              divisor of the norm; --norm dyt and derf do not divide, so they have no such ratio.
    Source:   Liu 2020 (rSkip), eq. 4
    """

    def __init__(self, place: Place, options: RecursiveOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.recursive_norms = nn.ModuleList([place.norm(place.dim) for _ in range(options.skip_lambda - 1)])

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        y = self.norm(x + f)
        for norm in self.recursive_norms:
            y = norm(x + y)
        return y

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        y, product = f, torch.ones_like(x)
        ratio = product
        for norm in [self.norm, *self.recursive_norms][:-1]:
            total = x + y
            sigma = divisor(norm, total)
            if sigma is None:
                return {}
            product = product * sigma / norm.weight
            ratio = ratio + product
            y = norm(total)
        return {"ratio": ratio}


def fold(site: Any) -> Fold:
    """Fold a site with λ = 1, which is post_ln.

    Raises: CannotFold for λ >= 2.
    """
    if len(site.recursive_norms):
        raise CannotFold(f"λ = {1 + len(site.recursive_norms)} adds the shortcut again after a norm; fold only λ = 1")
    return as_post_norm(site)


register(
    "rskip_ln",
    Structure(
        RecursiveOptions,
        RecursiveSkipLayerNorm,
        same_as=lambda options: "post_ln" if options.skip_lambda == 1 else None,
        folds=fold,
        family="Scaling",
        use_when="Post-norm models. The recursion costs almost no time on a CPU and a tenth more memory in training. "
        "Compare the results with those of `xskip_ln` to see what the recursion adds.",
    ),
)
