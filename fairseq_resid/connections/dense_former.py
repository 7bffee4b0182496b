"""After every layer, a weighted mean of the outputs of all layers so far: DenseFormer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .core.growing import append
from .core.mixing import mix
from .core.options import Options
from .core.place import Place
from .core.registry import Structure, for_all_options, register
from .core.stream import ResidualStream
from .pre_ln import PreLayerNorm


def mix_layers(state: Tensor, weights: Tensor, dim: int, step: int) -> Tensor:
    """Return Σ_j weights[j] X_j in the dtype of the state.

    Shapes:  state (..., n·C), weights (layers + 1,) -> (..., C)
    step: number of values that a layer appends to the state. X_0 is the first value, and X_j for j > 0 is the last but
    one of those that layer j appends. The state ends with X_j of the last layer.
    """
    layers = state.unflatten(-1, [-1, dim])[..., step - 1 :: step, :]
    mean = mix(weights[1:].unsqueeze(0), layers).squeeze(-2)
    return mean + weights[0].to(state.dtype) * state[..., :dim]


class DenseFormer(PreLayerNorm):
    """Uses pre-norm within a layer and passes a learned mean of the outputs of all layers so far to the next layer.

    Formula:  x + f(LN(x)) at every site; after layer i: y_i = Σ_{j≤i} a_ij X_j, X_j the output of layer j before this
              mean, X_0 the stack's input; layer i + 1 begins with y_i; LN(y) of the last layer ends the stack
    Source:   Pagliardini 2024, DenseFormer, eq. 1, and its code (denseformer.py) with dilation and period 1. The paper
              covers decoders only; a separate mean for each stack of an encoder-decoder is our choice.
    Start:    a_ii = 1 and all others 0, which is a pre-norm stack
    State:    grows: X_0, then for each layer the x of its sites, the last of which is X_i, and y_i. A branch sees the
              last value.
    """

    compiles = False  # every site of a stack has its own width, and so its own graph

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        layers = place.depth(place.stack)
        per_layer = place.sites // layers
        self.step = per_layer + 1
        self.width = (place.sites + layers + 1) * place.dim
        self.position = place.layer + place.index + 1  # number of values in the state at this site
        self.is_last = place.last
        start = torch.zeros(place.layer + 2)
        start[-1] = 1.0
        self.layer_weights = nn.Parameter(start) if place.last else None

    def branch_input(self, state: Tensor) -> Tensor:
        return self.norm(state[..., -self.dim :])

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        values = state.size(-1) // self.dim
        if values != self.position:
            needed = f"must have {self.position} at this site; do not skip or repeat a sublayer"
            raise RuntimeError(f"dense_former: state with {values} values: {needed}")
        state = append(state, state[..., -self.dim :] + f, self.width)
        weights = self.layer_weights
        if weights is not None:
            state = append(state, mix_layers(state, weights, self.dim, self.step), self.width)
        return state

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {} if self.layer_weights is None else {"a": self.layer_weights}


class DenseStream(ResidualStream):
    """Ends a DenseFormer stack with LN (affine, eps 1e-5) of the last layer's mean, or with the mean itself."""

    def __init__(self, place: Place, options: Options, final_norm: bool) -> None:
        super().__init__(place, options, final_norm)
        self.dim = place.dim

    def leave(self, state: Tensor) -> Tensor:
        return state[..., -self.dim :]


register(
    "dense_former",
    Structure(
        Options,
        DenseFormer,
        DenseStream,
        final_norm=True,
        needs_every_layer=for_all_options,
        formula="`pre_ln`; each layer ends with a learned mean of all layers so far",
        source="Pagliardini 2024",
        family="Depth",
        use_when="Pre-norm models whose layers should see all earlier layers, at the cost of very few parameters.",
    ),
)
