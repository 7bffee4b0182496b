"""Before every layer, a learned combination of the outputs of all layers so far, with norms: DLCL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, Structure, option, register
from .core.growing import LastValueStream, LayerHistory, append, check_values
from .core.registry import for_all_options


@dataclass(frozen=True)
class LayerCombinationOptions(Options):
    """Options of dlcl."""

    dlcl_norm: str = option(
        "pre",
        "pre: pre-norm layers, and norms of their outputs; post: post-norm layers, and norms of the combinations",
        choices=("pre", "post"),
    )


class LayerCombination(LayerHistory):
    """Begins every layer, and ends the stack, with a learned combination of the outputs of all layers so far.

    Formula:  `pre_ln` or `post_ln`; each layer begins with a learned sum of all layers so far, with norms
    Where:    layer l of L begins with x_l, has the residuals of `pre_ln` or `post_ln`, and ends with y_l; y_0 is the
              input of the stack; x_1 = w_{1,0} y_0;
              pre:  x_{l+1} = w_{l+1,0} y_0 + Σ_{k=1..l} w_{l+1,k} LN_k(y_k); LN(x_{L+1}) ends the stack;
              post: x_{l+1} = LN_{l+1}(Σ_{k=0..l} w_{l+1,k} y_k) for l > 0; x_{L+1} ends the stack.
              All w are learned numbers. Encoder and decoder each have their own w and norms.
    Source:   Wang 2019, DLCL, arXiv 1906.01787, and the authors' code (wangqiangneu/dlcl,
              fairseq/modules/layer_history.py), whose only and default history type is learnable_dense.
              fairseq/modules/dlcl.py with its default options is the same formula; its other options are left out:
              vectors as weights, fixed weights, weights that start at 1, softmax over the weights, a window of layers,
              a norm of y_0, dropout of the combinations.
              The formulas in the docstring of dlcl.py also normalise y_0 (pre) and x_1 (post). The code does neither,
              and we follow the code. Its weight matrix is stored by rows, each at the site that computes the sum.
    Start:    w_{l+1,k} = 1 / (l + 1), so that x_{l+1} is a mean
    State:    grows: y_0, then for each layer the x of its sites, the last of which is LN_l(y_l) (pre) or y_l (post),
              and x_{l+1}; the norm of x_{L+1}, pre or post, is that of the stack's end. The first site multiplies y_0
              by w_{1,0}; every other branch sees the last value.
    """

    def __init__(self, place: Place, options: LayerCombinationOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.is_post = options.dlcl_norm == "post"
        weights = place.layer + 2
        self.norm = place.norm(place.dim)
        self.input_weight = nn.Parameter(torch.ones(())) if place.index == 0 else None
        self.layer_weights = nn.Parameter(torch.full((weights,), 1 / weights)) if place.last else None
        self.output_norm = place.norm(place.dim) if place.last and not self.is_post else None
        is_inner = place.layer < self.layers - 1  # LN_{L+1} is in the stream
        self.combination_norm = place.norm(place.dim) if place.last and self.is_post and is_inner else None

    def shortcut(self, state: Tensor) -> Tensor:
        """Return the x of this site."""
        x = state[..., -self.dim :]
        return x if self.input_weight is None else self.input_weight * x

    def branch_input(self, state: Tensor) -> Tensor:
        x = self.shortcut(state)
        return x if self.is_post else self.norm(x)

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        check_values(self, state, self.position)
        y = self.shortcut(state) + f
        if self.is_post:
            y = self.norm(y)
        if self.output_norm is not None:
            y = self.output_norm(y)
        state = append(state, y, self.width)
        if self.layer_weights is not None:
            x = self.combination(state, self.layer_weights)
            if self.combination_norm is not None:
                x = self.combination_norm(x)
            state = append(state, x, self.width)
        return state

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        found = {"w_in": self.input_weight, "w": self.layer_weights}
        return {name: weight for name, weight in found.items() if weight is not None}


register(
    "dlcl",
    Structure(
        LayerCombinationOptions,
        LayerCombination,
        LastValueStream,
        final_norm=True,
        needs_every_layer=for_all_options,
        family="Depth",
        use_when="Deep encoders, pre-norm or post-norm: its paper trained 30 and 25 encoder layers.",
    ),
)
