"""States that grow: values of C channels, appended to a buffer that the first append allocates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...ops import is_recorded
from .base import ResidualConnection
from .options import Options
from .place import Place
from .stream import ResidualStream
from .tensors import mix


class _Append(torch.autograd.Function):
    """Writes a value after a state, in the buffer that the state is a view of, and returns the wider view.

    The state itself, which a backward pass may need, does not change, because the value is written to the memory after
    it. The storage of a buffer records how many channels are in use: if that memory holds the value of an earlier
    append to the same state, the state is copied first.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, value: Tensor, width: int) -> Tensor:
        before = state.size(-1)
        after = before + value.size(-1)
        # .data: autograd may have saved the state and must not count this write as an in-place modification.
        buffer = state.data if has_room(state, after, width) else moved(state, max(after, width))
        wide = buffer.as_strided((*state.shape[:-1], after), buffer.stride(), buffer.storage_offset())
        wide[..., before:] = value
        wide.untyped_storage().channels_in_use = after  # type: ignore[attr-defined]
        ctx.before = before
        return wide

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        return gradient[..., : ctx.before], gradient[..., ctx.before :], None


def has_room(state: Tensor, after: int, width: int) -> bool:
    """Return whether a state is all that is in use of each row of a buffer from `moved`, which holds `after` channels.

    Only a buffer records its channels, so that nothing is ever written into a tensor of the caller.
    """
    is_all = getattr(state.untyped_storage(), "channels_in_use", 0) == state.size(-1)
    lies_in_rows = state.stride(-1) == 1 and state.stride(-2) == width and state.storage_offset() % width == 0
    return is_all and lies_in_rows and after <= width


def moved(state: Tensor, width: int) -> Tensor:
    """Return a copy of a state in a new buffer with room for `width` channels."""
    buffer = state.new_empty((*state.shape[:-1], width))[..., : state.size(-1)]
    return buffer.copy_(state)


def append(state: Tensor, value: Tensor, width: int) -> Tensor:
    """Return a state (..., n·C) followed by a value (..., C), in the state's dtype.

    width: the number of channels at the end of the stack
    """
    value = value.to(state.dtype)
    if state.dim() <= 1 or is_recorded(state):
        return torch.cat([state, value], dim=-1)
    return _Append.apply(state, value, width)  # type: ignore[no-any-return]


def check_values(site: ResidualConnection, state: Tensor, expected: int) -> None:
    """Raise RuntimeError unless a state has as many values as after all earlier sublayers, each called once."""
    if (values := state.size(-1) // site.dim) != expected:
        needed = f"must have {expected} at this site; do not skip or repeat a sublayer"
        raise RuntimeError(f"{site.described['residual']}: state with {values} values: {needed}")


class LayerHistory(ResidualConnection):
    """A connection that combines the outputs of all layers so far at the end of each layer.

    State:    grows: X_0, the stack's input, then for each layer the values of its sites, the last of which is X_i, and
              the input of the next layer, a combination of X_0 .. X_i. A subclass appends these values.
    """

    compiles = False  # every site of a stack has its own width, and so its own graph

    def __init__(self, place: Place, options: Options, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.layers = place.depth(place.stack)
        self.step = place.sites // self.layers + 1  # number of values that a layer appends
        self.width = (place.sites + self.layers + 1) * place.dim
        self.position = place.layer + place.index + 1  # number of values in the state at this site

    def combination(self, state: Tensor, weights: Tensor) -> Tensor:
        """Return Σ_j weights[j] X_j in the dtype of the state, which ends with X_i.

        Shapes:  state (..., n·C), weights (i + 1,) -> (..., C)
        """
        layers = state.unflatten(-1, [-1, self.dim])[..., self.step - 1 :: self.step, :]
        mean = mix(weights[1:].unsqueeze(0), layers).squeeze(-2)
        return mean + weights[0].to(state.dtype) * state[..., : self.dim]


class LastValueStream(ResidualStream):
    """Ends a stack with the last value of its state, or LN (affine, eps 1e-5) of it."""

    def leave(self, state: Tensor) -> Tensor:
        return state[..., -self.dim :]
