"""The place of a residual connection in its model: everything that a formula may depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .norms import layer_norm
from .options import InvalidOption


@dataclass(frozen=True)
class Place:
    """The place of a sublayer site, or of a stack's stream, in a model.

    dim: C; stack: "encoder", "decoder", "stage3"
    kind: "self_attn", "encoder_attn", "ffn", "conv"; a stream's is "stream"
    layer: index of the layer in its stack, from 0; last: whether this is the last sublayer of its layer
    index: index of the sublayer in its stack, from 0; a stream's is `sites`, the number of sublayers in the stack
    depths: number of layers of every stack of the model; empty if unknown
    norm: function that returns a norm for a given number of channels
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

    def require_depths(self) -> None:
        """Raise ValueError if `depths` is empty, as it is for a place of which only the width is known.

        Raises: InvalidOption, a ValueError, if the stack is not in `depths` or has no such layer.
        """
        if not self.depths:
            raise ValueError(
                "Place without depths: the structure depends on the layer or on the model's depth; pass build() a "
                "Place with depths"
            )
        if self.stack not in self.depths:
            raise InvalidOption("stack", self.stack, f"must be one of depths: {', '.join(self.depths)}")
        layers = self.depths[self.stack]
        if self.layer >= layers and self.kind != "stream":  # a stream's layer is the number of layers
            raise InvalidOption("layer", self.layer, f"must be < {layers}, the layers of {self.stack} in depths")

    def depth(self, stack: str) -> int:
        """Return the number of layers of a stack; 0 if the model has no such stack.

        Raises: ValueError as `require_depths`.
        """
        self.require_depths()
        return self.depths.get(stack, 0)
