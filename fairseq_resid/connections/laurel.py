"""A learned linear map on the shortcut: LAuReL, with residual weights, a low-rank map, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .core import InvalidOption, Options, Place, Structure, option, register
from .pre_ln import PreLayerNorm

DEFAULT_RANK = 32  # or C, if that is smaller


@dataclass(frozen=True)
class LaurelOptions(Options):
    """Options of laurel."""

    laurel_form: str = option(
        "both",
        "rw: weights of shortcut and branch; lr: a low-rank map of the shortcut; both",
        choices=("both", "rw", "lr"),
    )
    laurel_rank: int = option(
        DEFAULT_RANK,
        "rank r <= C of the map (32: the smaller of 32 and C); no effect with --laurel-form rw",
        least=1,
        most=1024,
        example=4,
    )

    def check_width(self, dim: int) -> None:
        if self.laurel_rank > dim and self.laurel_rank != DEFAULT_RANK:
            raise InvalidOption("laurel_rank", self.laurel_rank, f"must be <= {dim}, the number of channels")


class Laurel(PreLayerNorm):
    """Weights branch and shortcut, and adds a low-rank map of the shortcut.

    Formula:  αF + β(I + BA)x, F from f(LN(x)), α + β = 1, BA of low rank
    Where:    A in R^{r×C}, B in R^{C×r}; (α, β) is a softmax of two learned numbers. rw: without BA; lr: α = β = 1
    Source:   Menghani 2025, LAuReL, arXiv 2411.07501, eq. 3 and 5; Gemma 3n's map reads LN(x), and has a norm after
              it. Not implemented: the version that also reads earlier layers
    Start:    A_ij = 1 / √(r C) where j mod r = i, else 0, and B = 0, as in the paper's language models. α = β = 0.5 is
              our choice: the paper allows softmax or sigmoid, but states no initial values
    """

    def __init__(self, place: Place, options: LaurelOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.residual_weights = self.down_weight = self.up_weight = None
        if options.laurel_form != "lr":
            self.residual_weights = nn.Parameter(torch.zeros(2))
        if options.laurel_form != "rw":
            rank = min(options.laurel_rank, place.dim)
            rows = torch.arange(place.dim) % rank == torch.arange(rank).unsqueeze(1)
            self.down_weight = nn.Parameter(rows / (rank * place.dim) ** 0.5)
            self.up_weight = nn.Parameter(torch.zeros(place.dim, rank))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a checkpoint, also one from before version 1.1, in which the rank could be larger than C.

        The surplus rows of A and columns of B are 0 and receive no gradient. They are kept, so that the state of the
        optimizer fits too.
        """
        for name, own, dimension in (("down_weight", self.down_weight, 0), ("up_weight", self.up_weight, 1)):
            theirs = state_dict.get(prefix + name)
            if own is not None and theirs is not None and theirs.size(dimension) > self.dim:
                own.data = own.new_zeros(theirs.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        shortcut = x
        if self.down_weight is not None and self.up_weight is not None:
            shortcut = x + functional.linear(functional.linear(x, self.down_weight), self.up_weight)
        if self.residual_weights is None:
            return shortcut + f
        weights = torch.softmax(self.residual_weights, 0)
        return weights[0] * f + weights[1] * shortcut

    def coefficients(self, x: Tensor, f: Tensor) -> dict[str, Tensor]:
        if self.residual_weights is None:
            return {}
        alpha, beta = torch.softmax(self.residual_weights, 0)
        return {"α": alpha, "β": beta}


register(
    "laurel",
    Structure(
        LaurelOptions,
        Laurel,
        final_norm=True,
        family="Scaling",
        use_when="Pre-norm models, at the cost of a few parameters. "
        "`--laurel-form rw` and `--laurel-form lr` use only one of the two parts. "
        "The initial weights halve the shortcut at every site, so deep stacks need `lr`.",
    ),
)
