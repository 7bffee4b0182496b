"""After every layer, a weighted mean of the outputs of all layers so far: DenseFormer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, Structure, register
from .core.growing import LastValueStream, LayerHistory, append, check_values
from .core.registry import for_all_options


class DenseFormer(LayerHistory):
    """Uses pre-norm within a layer and passes a learned mean of the outputs of all layers so far to the next layer.

    Formula:  `pre_ln`; each layer ends with a learned mean of all layers so far
    Where:    after layer i: y_i = Σ_{j≤i} a_ij X_j, X_j the output of layer j before this mean, X_0 the stack's input;
              layer i + 1 begins with y_i; LN(y) of the last layer ends the stack
    Source:   Pagliardini 2024, DenseFormer, eq. 1, and its code (denseformer.py) with dilation and period 1. The paper
              covers decoders only; a separate mean for each stack of an encoder-decoder is our choice.
    Start:    a_ii = 1 and all others 0, which is a pre-norm stack
    State:    grows: X_0, then for each layer the x of its sites, the last of which is X_i, and y_i. A branch sees the
              last value.
    """

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.norm = place.norm(place.dim)
        start = torch.zeros(place.layer + 2)
        start[-1] = 1.0
        self.layer_weights = nn.Parameter(start) if place.last else None

    def branch_input(self, state: Tensor) -> Tensor:
        return self.norm(state[..., -self.dim :])

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        check_values(self, state, self.position)
        state = append(state, state[..., -self.dim :] + f, self.width)
        if self.layer_weights is not None:
            state = append(state, self.combination(state, self.layer_weights), self.width)
        return state

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {} if self.layer_weights is None else {"a": self.layer_weights}


register(
    "dense_former",
    Structure(
        Options,
        DenseFormer,
        LastValueStream,
        final_norm=True,
        needs_every_layer=for_all_options,
        family="Depth",
        use_when="Pre-norm models whose layers should see all earlier layers, at the cost of very few parameters.",
    ),
)
