"""Folds sites into the layers of common inference engines, which support only the arrangements of norms in NORMS.

A structure declares how to fold its sites when it is registered: its `folds` is a function from a site to a Fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

NORMS = {"post_norm": 1, "pre_norm": 1, "pre_and_post_norm": 2}  # number of norms of each graph


class CannotFold(ValueError):
    """Raised if a model cannot be written as layers of a common engine. The message states the reason in one line."""


@dataclass(frozen=True)
class Fold:
    """A site written as one of three graphs, with its sublayer f in eval mode.

    Formula:  post_norm            y = LN(a ⊙ x + b ⊙ f(x))
              pre_norm             y = x + b ⊙ f(LN(x))
              pre_and_post_norm    y = x + LN_out(b ⊙ f(LN_in(x)))
    Shapes:   norms: (gain, bias) of each LN in the order of use, each (C,); shortcut a and branch b: numbers or (C,)
    Each LN has eps 1e-5.
    """

    graph: str
    norms: tuple[tuple[Tensor, Tensor], ...]
    shortcut: Tensor | float = 1.0
    branch: Tensor | float = 1.0

    def __post_init__(self) -> None:
        if len(self.norms) != NORMS[self.graph]:
            raise ValueError(f"graph {self.graph} with {len(self.norms)} norms: must have {NORMS[self.graph]}")
        if self.graph != "post_norm" and not (isinstance(self.shortcut, float) and self.shortcut == 1):
            raise ValueError(f"graph {self.graph} with a shortcut weight: only post_norm can have one")


def affine(norm: Any, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the gain and bias of a LayerNorm, both multiplied by `scale`.

    Raises: CannotFold for any other norm.
    """
    if not isinstance(norm, nn.LayerNorm):
        raise CannotFold(f"its norm is {type(norm).__name__}; only a structure with --norm layer can be folded")
    return norm.weight.detach() * scale, norm.bias.detach() * scale


def as_post_norm(site: Any) -> Fold:
    """Fold y = LN(x + F), for a site with the attribute `norm`."""
    return Fold("post_norm", (affine(site.norm),))


def as_pre_norm(site: Any) -> Fold:
    """Fold y = x + f(LN(x)), for a site with the attribute `norm`."""
    return Fold("pre_norm", (affine(site.norm),))
