"""A shortcut from the embedding to every layer, with learned scalars: the x0 lambdas of modded-nanogpt and nanochat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .core import Options, Place, ResidualStream, Structure, option, register
from .core.norms import EPS
from .pre_ln import PreLayerNorm


@dataclass(frozen=True)
class ShortcutOptions(Options):
    """Options of embedding_shortcut."""

    shortcut_start: str = option(
        "neutral",
        "initial λ and μ. neutral: 1 and 0; nanochat: 1.15 and 0.2 in the first layer, 1.05 and 0.05 in the last",
        choices=("neutral", "nanochat"),
        is_initial=True,
    )

    def start(self, layer: int, layers: int) -> tuple[float, float]:
        """Return the initial values of λ and μ in a layer, counted from 0."""
        if self.shortcut_start == "neutral":
            return 1.0, 0.0
        depth = layer / max(layers - 1, 1)
        return 1.15 - 0.10 * depth, 0.20 - 0.15 * depth


def normed(x: Tensor) -> Tensor:
    """Return x₀, RMSNorm of the input of a stack, without a gain."""
    return functional.rms_norm(x, x.shape[-1:], None, EPS)


class EmbeddingShortcut(PreLayerNorm):
    """Scales the shortcut before each pre-norm layer and adds the scaled embedding to it.

    Formula:  `pre_ln`; each layer starts from λx + μx₀, x₀ the normed embedding
    Where:    λ_i and μ_i in R, one of each for layer i; x₀ = RMSNorm(the stack's input), without a gain, is also the
              first x
    Source:   Jordan 2024 and Karpathy 2026: modded-nanogpt (the record of 2024-11-06, "embed shortcut") and nanochat
              (nanochat/gpt.py, resid_lambdas and x0_lambdas). RMSNorm of x₀ has no parameters, as in their code,
              because it does not belong to a layer: with layer drop, any layer can be the first. --norm does not change
              it. Our choices: eps 1e-5; LN instead of the same RMSNorm at the sites and at the end; an x₀ for each
              stack of an encoder-decoder. Not implemented: nanochat's learning rates, which are 100 times lower for λ
              than for μ, and its other additions, such as value embeddings
    Start:    λ = 1 and μ = 0, as in modded-nanogpt and at first in nanochat: a pre-norm stack on x₀; with
              --shortcut-start nanochat, λ_i = 1.15 - 0.1 i / max(L - 1, 1) and μ_i = 0.2 - 0.15 i / max(L - 1, 1) in
              layer i of L, from 0, as in nanochat since March 2026
    State:    (..., 2C): x, then x₀
    """

    def __init__(self, place: Place, options: ShortcutOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        layers = place.depth(place.stack)
        self.least_width = self.most_width = 2 * place.dim
        is_first = place.index % (place.sites // layers) == 0  # of its layer
        shortcut, embedding = options.start(place.layer, layers)
        self.shortcut_scalar = nn.Parameter(torch.tensor(shortcut)) if is_first else None
        self.embedding_scalar = nn.Parameter(torch.tensor(embedding)) if is_first else None

    def enter(self, x: Tensor) -> Tensor:
        return torch.cat([normed(x)] * 2, dim=-1) if x.size(-1) == self.dim else x

    def shortcut(self, state: Tensor) -> Tensor:
        """Return λx + μx₀ at the first site of a layer, and x at the others."""
        x, x0 = state[..., : self.dim], state[..., self.dim :]
        if self.shortcut_scalar is None or self.embedding_scalar is None:
            return x
        return torch.addcmul(self.shortcut_scalar * x, self.embedding_scalar, x0)

    def branch_input(self, state: Tensor) -> Tensor:
        return self.norm(self.shortcut(state))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        y = self.shortcut(state) + f
        return torch.cat([y, state[..., self.dim :].to(y.dtype)], dim=-1)

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        found = {"lambda": self.shortcut_scalar, "mu": self.embedding_scalar}
        return {name: scalar for name, scalar in found.items() if scalar is not None}


class ShortcutStream(ResidualStream):
    """Ends a stack of embedding_shortcut with LN (affine, eps 1e-5) of x, or with x itself.

    If every layer was dropped, it receives the stack's input, and x is x₀.
    """

    def leave(self, state: Tensor) -> Tensor:
        return normed(state) if state.size(-1) == self.dim else state[..., : self.dim]


register(
    "embedding_shortcut",
    Structure(
        ShortcutOptions,
        EmbeddingShortcut,
        ShortcutStream,
        final_norm=True,
        family="Depth",
        use_when="Pre-norm models whose deep layers should still see the embedding, at the cost of two numbers per "
        "layer.",
    ),
)
