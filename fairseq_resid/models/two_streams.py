"""Layers with a residual and a transient stream: ResNet Init, the building block of ResNet in ResNet.

The first half of the input's channels is the stream r, and the second half is t. One linear map W' = W + I, where I is
the identity on r, computes all four maps between the streams, and the shortcut of r:

    r' = W_rr r + W_tr t + r;   t' = W_rt r + W_tt t            Source: Targ 2016, eq. 1 and 2, appendix 6.1

W is learned and stored, so that weight decay pulls W' towards I instead of 0. (The second line of the paper's eq. 1
prints W_tr; its eq. 2 has W_tt.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def identity_on_first_half(weight: Tensor) -> Tensor:
    """Return I for a weight (out, in, ...): 1 at the centre tap from each channel of r to itself, 0 elsewhere.

    If the streams become wider, all of the old r is kept, and the new channels of r' have no shortcut.
    """
    eye = torch.zeros_like(weight)
    kept = min(weight.size(0), weight.size(1)) // 2
    centre = [size // 2 for size in weight.shape[2:]]
    for channel in range(kept):
        eye[tuple([channel, channel, *centre])] = 1
    return eye


class TwoStream(nn.Module):
    """Mixin for a layer with the weight W + I."""

    weight: Tensor
    identity: Tensor

    def __init__(self, *sizes: Any, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.register_buffer("identity", identity_on_first_half(self.weight.detach()), persistent=False)


class TwoStreamConv2d(TwoStream, nn.Conv2d):
    """A convolution with W + I. Shapes: (N, in, H, W) -> (N, out, H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight + self.identity, self.bias)


class TwoStreamLinear(TwoStream, nn.Linear):
    """A linear map with W + I. Shapes: (..., in) -> (..., out)."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight + self.identity, self.bias)
