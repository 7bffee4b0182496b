"""Where a residual connection stands in its model: all that a formula may depend on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .options import InvalidOption

EPS = 1e-5


def layer_norm(dim: int) -> nn.Module:
    """Return the affine LayerNorm of every structure, eps 1e-5."""
    return nn.LayerNorm(dim, eps=EPS)


@dataclass(frozen=True)
class Place:
    """The place of a sublayer site in a model, or of a stack's stream.

    dim: C; stack: "encoder", "decoder", "stage3"
    kind: "self_attn", "encoder_attn", "ffn", "conv"; a stream's is "stream"
    layer: of the stack, from 0; last: whether this is the last sublayer of its layer
    index: of the sublayer in its stack, from 0; a stream's is `sites`, the sublayers of the stack
    depths: the layers of every stack of the trained model; empty if they are not known
    norm: what makes a norm of so many channels
    Raises: InvalidOption naming the field that is no integer, or too small.
    """

    dim: int
    stack: str = "encoder"
    kind: str = "ffn"
    layer: int = 0
    last: bool = True
    index: int = 0
    sites: int = 1
    depths: Mapping[str, int] = field(default_factory=dict)
    norm: Callable[[int], Any] = layer_norm

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("layer", 0), ("index", 0), ("sites", 0)):
            given = getattr(self, name)
            try:
                number = operator.index(given)
            except TypeError:
                raise InvalidOption(f"{name} {given!r}: must be an integer of at least {least}") from None
            if number < least:
                raise InvalidOption(f"{name} {given}: must be an integer of at least {least}")
            object.__setattr__(self, name, number)

    def depth(self, stack: str) -> int:
        """Return how many layers a stack has; 0 if the model has no such stack.

        Raises: ValueError if the place is of no known model.
        """
        if not self.depths:
            raise ValueError("this structure depends on the depth of its model: give build() a Place with depths")
        return self.depths.get(stack, 0)
