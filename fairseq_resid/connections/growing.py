"""A state that grows: one value of C channels after the other, in a buffer that the first appended one allocates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Append(torch.autograd.Function):
    """Writes a value behind a state, in the buffer that the state is a view of, and returns the wider view.

    What a derivative needs of the state stays as it was: only memory behind it is written.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, value: Tensor, width: int) -> Tensor:
        before = state.size(-1)
        after = before + value.size(-1)
        # .data: writing behind a state must not count as a change of the state, which autograd keeps.
        buffer = state.data if has_room(state, after, width) else moved(state, max(after, width))
        wide = buffer.as_strided((*state.shape[:-1], after), buffer.stride(), buffer.storage_offset())
        wide[..., before:] = value
        ctx.before = before
        return wide

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        return gradient[..., : ctx.before], gradient[..., ctx.before :], None


def has_room(state: Tensor, after: int, width: int) -> bool:
    """Return whether a state lies at the beginning of the rows of such a buffer, and `after` channels fit there."""
    lies_in_rows = state.stride(-1) == 1 and state.stride(-2) == width and state.storage_offset() % width == 0
    is_first = after == 2 * state.size(-1)  # what a stack is given is in somebody else's memory
    return lies_in_rows and after <= width and not is_first


def moved(state: Tensor, width: int) -> Tensor:
    """Return a state's values at the beginning of a new buffer."""
    buffer = state.new_empty((*state.shape[:-1], width))[..., : state.size(-1)]
    return buffer.copy_(state)


def append(state: Tensor, value: Tensor, width: int) -> Tensor:
    """Return a state (..., n·C) and behind it a value (..., C), in the state's dtype.

    width: the channels that a whole stack gathers. A state is appended to once: the memory behind it is taken then.
    """
    value = value.to(state.dtype)
    if not torch.jit.is_scripting():  # noqa: SIM102  (TorchScript leaves out what stands under this alone)
        if state.dim() > 1 and not torch.compiler.is_compiling():
            return _Append.apply(state, value, width)  # type: ignore[no-any-return]
    return torch.cat([state, value], dim=-1)
