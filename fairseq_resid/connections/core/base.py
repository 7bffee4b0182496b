"""The base class of residual connections: one module per sublayer site, built from its place and options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ...ops import compiled_formula
from .options import Options
from .place import Place


class ResidualConnection(nn.Module):
    """Combines the state of a stack and the output f_out of a sublayer into the next state.

    Every structure is used the same way:

        state = site.enter(x)                                        # once, at the start of a stack
        state = site(state, sublayer(site.branch_input(state)))     # at every site

    A subclass implements its formula in `combine`, which `backend` (--residual-backend) calls as it is or compiled.

    Shapes:   state: (..., n·C), one tensor; f_out: (..., C) with the same leading dimensions: nothing is broadcast.
              n is 1 for most structures, whose state is the shortcut x
    Dtype:    fp16 / bf16 / fp32 / fp64 in, the same out; LayerNorm is affine with eps 1e-5 and fp32 statistics
    Range:    finite for |x|, |F| up to L / S, where L = 65,000 in fp16 and 1e17 in bf16 and fp32, and S is the sum of
              the formula's weights (2 for x + F): docs/contributing.md
    Args:     place: the position of the site in the model; options: the structure's options; dropout: of the branch, a
              module or a probability: F = dropout(f_out); described: the name and options that print(model) shows
    """

    compiles = True  # whether `backend` compile applies

    def __init__(
        self,
        place: Place,
        options: Options,
        dropout: nn.Module | float = 0.0,
        backend: str = "eager",
        described: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.place, self.options, self.described = place, options, dict(described or {})
        self.dropout = dropout if isinstance(dropout, nn.Module) else nn.Dropout(dropout)
        self.backend = backend
        self.dim = place.dim
        # Bounds on the number of channels of a state. Both are multiples of C, and a maximum of 0 means no limit. A
        # structure with a wide state may set both bounds; `build` sets the maximum of all other structures to C.
        self.least_width, self.most_width = place.dim, 0

    def enter(self, x: Tensor) -> Tensor:
        """Return the initial state of a stack from its input (..., C); a state is returned unchanged."""
        return x

    def branch_input(self, state: Tensor) -> Tensor:
        """Return the input of the sublayer. The default is the whole state."""
        return state

    def forward(self, state: Tensor, f_out: Tensor) -> Tensor:
        """Return the next state from the state and the sublayer's raw output f_out.

        Raises: ValueError naming the argument with the wrong shape.
        """
        check_shapes(state, f_out, self.dim, self.least_width, self.most_width)
        if self.backend == "compile" and self.compiles:
            return compiled_formula(self, state, f_out)
        return self.combine(state, self.dropout(f_out))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        """Return the next state from the state and the branch F = dropout(f_out): the structure's formula."""
        raise NotImplementedError("a ResidualConnection must define combine")

    def share(self, first: ResidualConnection) -> None:
        """Share parameters with the first site of the same layer.

        This method is called once for each of the layer's other sites.
        """

    def init_branch(self, **linears: nn.Linear | nn.Conv2d) -> None:
        """Reinitialise the sublayer's weights. This method is called once, before a checkpoint is loaded.

        linears: the query, key, value and output projections of an attention module; fc1 and fc2 of a feed-forward
                 network; conv1, conv2, ... of a convolutional block
        """

    @classmethod
    def profile(cls, sites: Sequence[ResidualConnection]) -> AbstractContextManager[None]:
        """Return a context in which one forward pass initialises the sites of a stack, from first to last.

        This method is called once for each stack of a new model if `is_profiled` is true for the structure's options.
        The pass computes no gradients.
        """
        raise NotImplementedError("a structure with is_profiled must define profile")

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        """Return the weights of the formula's terms by name, for analysis.

        Shapes: (T, B, ...) or (N, H, W, ...) if they depend on the position; otherwise at most two dimensions
        """
        return {}

    def extra_repr(self) -> str:
        """Return the width, the --residual name and the options, for print(model)."""
        return ", ".join([str(self.place.dim), *(f"{name}={value}" for name, value in self.described.items())])


def check_shapes(state: Tensor, f_out: Tensor, dim: int, least: int, most: int) -> None:
    """Raise ValueError unless f_out is (..., dim) and state is (..., n·dim) with `least` to `most` channels.

    most: 0 for no maximum
    """
    shape, f_shape, width = state.shape, f_out.shape, state.size(-1)
    if f_shape[-1:] != (dim,):
        raise ValueError(f"f_out {list(f_shape)}: must be (..., {dim}), as wide as the connection")
    if shape[:-1] != f_shape[:-1]:
        raise ValueError(
            f"f_out {list(f_shape)}: must have the shape of the state {list(shape)}, except for the channels"
        )
    if most == dim != width:
        raise ValueError(f"state {list(shape)}: must be (..., {dim}), as wide as the connection")
    if width < least or (most > 0 and width > most) or width % dim != 0:
        raise ValueError(
            f"state {list(shape)}: must have a multiple of {dim} channels, at least {least}; use enter(x) first"
        )


def sites(module: nn.Module) -> dict[str, ResidualConnection]:
    """Return the sites of a module in forward order, by names such as encoder.0.self_attn."""
    found = (each for each in module.modules() if isinstance(each, ResidualConnection))
    return {f"{site.place.stack}.{site.place.layer}.{site.place.kind}": site for site in found}


# The maximum number of components of a coefficient that are reported separately, such as n·n stream weights. A larger
# coefficient, such as a weight for each channel, is reported as a whole.
FEW = 32


def is_positional(coefficient: Tensor, positions: torch.Size) -> bool:
    """Return whether a coefficient has a value for each position, rather than one for all of them.

    positions: (T, B) for text or (N, H, W) for images
    """
    return coefficient.dim() > len(positions) and coefficient.shape[: len(positions)] == positions


def components(name: str, value: Tensor, positions: torch.Size) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a coefficient that are reported separately, each (*positions, ...) if it is positional."""
    leading = len(positions) if is_positional(value, positions) else 0
    rest = value.shape[leading:]
    if len(rest) and 1 < math.prod(rest) <= FEW:
        flat = value.flatten(leading)
        for number in range(flat.size(-1)):
            places = [number // math.prod(rest[i + 1 :]) % rest[i] + 1 for i in range(len(rest))]
            yield f"{name}[{','.join(map(str, places))}]", flat[..., number]
    else:
        yield name, value
