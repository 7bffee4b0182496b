"""A growing state: values of C channels, appended to a buffer that the first append allocates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...ops import is_recorded


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
