"""What every residual connection is: one object per sublayer site, which knows its place and its options."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import use_kernels
from .options import InvalidOption, Options
from .place import Place


class ResidualConnection(nn.Module):
    """Joins the state of a stack and a sublayer's output f into the next state.

    Use, the same for every structure:

        state = site.enter(x)                                        # once, where a stack begins
        state = site(state, sublayer(site.branch_input(state)))     # at every site

    A subclass gives the formula in `combine`. One that has a kernel gives the same formula, dropout included, in
    `combine_fused`; `backend` (--residual-backend) decides which of them runs.

    Shapes:   state: (..., n·C), one tensor; f_out: (..., C), its other dimensions those of the state: nothing is
              broadcast. n is 1 for most structures: the state is the shortcut x
    Dtype:    fp16 / bf16 / fp32 / fp64 in, the same out; LayerNorm is affine, eps 1e-5, its statistics in fp32
    Range:    finite for |x|, |F| up to L / S, L = 65,000 in fp16 and 1e17 in bf16 and fp32, S the sum of the formula's
              weights, 2 for x + F: docs/adding-a-structure.md
    Args:     place: where the site stands; options: of the structure; dropout: the branch's, a module or a probability:
              F = dropout(f_out); described: what print(model) shows: its name and its options
    """

    def __init__(
        self,
        place: Place,
        options: Options,
        dropout: nn.Module | float = 0.0,
        backend: str = "auto",
        described: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # TorchScript sees none of these three: a subclass copies the numbers that its formula needs.
        self.place, self.options, self.described = place, options, dict(described or {})
        self.dropout = dropout if isinstance(dropout, nn.Module) else nn.Dropout(probability(dropout))
        self.backend = backend
        self.dim = place.dim
        # Channels of a state that `forward` takes, multiples of C; 0: no maximum. A structure with a wide state may set
        # both; of the others `build` sets the maximum to C.
        self.least_width, self.most_width = place.dim, 0

    @torch.jit.export
    def enter(self, x: Tensor) -> Tensor:
        """Return the state that a stack begins with, from its input (..., C). A state is returned as it is."""
        return x

    @torch.jit.export
    def branch_input(self, state: Tensor) -> Tensor:
        """Return what the sublayer sees of the state: all of it, unless the structure says otherwise."""
        return state

    def forward(self, state: Tensor, f_out: Tensor) -> Tensor:
        """Return the next state from the state and the sublayer's raw output f_out.

        Raises: ValueError naming the argument of the wrong shape (torch.jit.Error from TorchScript); TypeError naming
                what is no tensor, such as all that an attention returns.
        """
        is_tracing = False
        if not torch.jit.is_scripting():  # TorchScript leaves out what stands under this alone
            is_tracing = torch.jit.is_tracing()  # sizes are tensors then
            for name, given in (("state", state), ("f_out", f_out)):
                if not isinstance(given, Tensor):
                    raise TypeError(f"{name} of type {type(given).__name__}: must be a tensor")
        if not is_tracing:
            check_shapes(state, f_out, self.dim, self.least_width, self.most_width)
        if not torch.jit.is_scripting():  # noqa: SIM102
            if use_kernels(self.backend, self.training, state, f_out):
                p = dropout_probability(self.dropout)
                if p is None:
                    return self.combine_fused(state, self.dropout(f_out), 0.0)
                return self.combine_fused(state, f_out, p)
        return self.combine(state, self.dropout(f_out))

    def combine_fused(self, state: Tensor, f_out: Tensor, p: float) -> Tensor:
        """Return what `combine` returns for F = dropout(f_out, p), computed by the kernels of `ops`."""
        raise NotImplementedError("a structure with a kernel defines combine_fused")

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        """Return the next state from the state and the branch F = dropout(f_out): the formula of the structure."""
        raise NotImplementedError("a ResidualConnection defines combine")

    def share(self, first: ResidualConnection) -> None:
        """Take over what all sites of a layer have in common from its first one; called once for each of the others."""

    def init_branch(self, **linears: nn.Linear | nn.Conv2d) -> None:
        """Draw start values of the sublayer's weights anew, once, before anything is loaded.

        linears: query, key, value, output of an attention; fc1, fc2 of a feed-forward; conv1, conv2, ... of a block
        """

    @classmethod
    def profile(cls, sites: Sequence[ResidualConnection]) -> AbstractContextManager[None]:
        """Set start values of a stack's sites, first to last, during one pass through them in the block.

        Called once for each stack of a new model, if the structure's `is_profiled` says so; the pass has no gradients.
        """
        raise NotImplementedError("a structure that is profiled defines profile")

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        """Return what the structure weighs its parts by, by name: what analysis shows.

        Shapes: one for each position (T, B, ...) or (N, H, W, ...); the same everywhere: two dimensions or fewer
        """
        return {}

    def extra_repr(self) -> str:
        """Return what print(model) shows of the connection: its width, its --residual name and its options."""
        return ", ".join([str(self.place.dim), *(f"{name}={value}" for name, value in self.described.items())])


def check_shapes(state: Tensor, f_out: Tensor, dim: int, least: int, most: int) -> None:
    """Raise ValueError unless f_out is (..., dim), and state (..., n·dim) of `least` to `most` channels.

    most: 0: any number
    """
    f_shape, shape = f_out.shape, state.shape
    if most == dim and shape == f_shape and len(shape) > 0 and shape[-1] == dim:  # nearly always, and cheap
        return
    if len(f_shape) == 0 or f_shape[-1] != dim:
        raise ValueError(f"f_out {list(f_shape)}: must be (..., {dim}), as wide as the connection")
    if len(shape) != len(f_shape) or shape[:-1] != f_shape[:-1]:
        raise ValueError(f"f_out {list(f_shape)}: must have the shape of the state {list(shape)}, but for its channels")
    width = shape[-1]
    if width < least or (most > 0 and width > most) or width % dim != 0:
        if most == dim:
            raise ValueError(f"state {list(shape)}: must be (..., {dim}), as wide as the connection")
        raise ValueError(
            f"state {list(shape)}: must have a multiple of {dim} channels, from {least} on; enter(x) begins a state"
        )


def probability(dropout: Any) -> float:
    """Return a dropout probability.

    Raises: InvalidOption naming what was given and what is allowed.
    """
    value = float(dropout) if isinstance(dropout, numbers.Real) else math.nan
    if not 0 <= value <= 1:  # nor NaN
        raise InvalidOption(f"dropout {dropout}: must be a number from 0 to 1, or a module")
    return value


def dropout_probability(dropout: nn.Module) -> float | None:
    """Return the probability with which a dropout module drops now; None if only the module itself can drop.

    A module of another class than nn.Dropout says it by a method `probability()`.
    """
    known = getattr(dropout, "probability", None)
    if type(dropout) is nn.Dropout:
        p, drops = float(dropout.p), dropout.training
    elif known is not None:
        p, drops = float(known()), True
    else:
        return None
    if p >= 1:  # everything: F / (1 - p) has no value
        return None
    return p if drops else 0.0


def sites(module: nn.Module) -> dict[str, ResidualConnection]:
    """Return the sites in a module by name, such as encoder.0.self_attn, as a sentence meets them."""
    found = (each for each in module.modules() if isinstance(each, ResidualConnection))
    return {f"{site.place.stack}.{site.place.layer}.{site.place.kind}": site for site in found}


FEW = 32  # components of a coefficient that are shown apart, such as n·n weights of streams; more are channels


def is_positional(coefficient: Tensor, positions: torch.Size) -> bool:
    """Return whether a coefficient has a value for each position; else it is the same everywhere.

    positions: the sizes (T, B) of a text, (N, H, W) of images
    """
    return coefficient.dim() > len(positions) and coefficient.shape[: len(positions)] == positions


def components(name: str, value: Tensor, positions: torch.Size) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a coefficient that have a figure of their own; (*positions, ...) each, if it is positional."""
    leading = len(positions) if is_positional(value, positions) else 0
    rest = value.shape[leading:]
    if len(rest) and 1 < math.prod(rest) <= FEW:
        flat = value.flatten(leading)
        for number in range(flat.size(-1)):
            places = [number // math.prod(rest[i + 1 :]) % rest[i] + 1 for i in range(len(rest))]
            yield f"{name}[{','.join(map(str, places))}]", flat[..., number]
    else:
        yield name, value


def xavier_uniform(rows: int, columns: int) -> Tensor:
    """Return a (rows, columns) weight, Xavier-uniform by its own fans (tensor2tensor's default initialiser)."""
    return nn.init.xavier_uniform_(torch.empty(rows, columns))
