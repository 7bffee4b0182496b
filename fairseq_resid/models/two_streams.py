"""Layers of a residual and a transient stream: ResNet Init, of which ResNet in ResNet is made.

The input holds both streams, r in the first half of its channels and t in the second. One linear map W' = W + I does
what the four maps between the streams and the shortcut of r do, I being the identity on r alone:

    r' = W_rr r + W_tr t + r;   t' = W_rt r + W_tt t            Source: Targ 2016, eq. 1 and 2, appendix 6.1

W is what is learned and stored, so that weight decay draws W' to I and not to 0. (The paper's eq. 1 prints W_tr in its
second line; its eq. 2 has W_tt.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def identity_on_first_half(weight: Tensor) -> Tensor:
    """Return the I of a weight (out, in, ...): 1 at its centre tap, from the r half of the input to that of the output.

    Of streams that grow, all of the old r is kept; what is new in r' has no shortcut.
    """
    eye = torch.zeros_like(weight)
    kept = min(weight.size(0), weight.size(1)) // 2
    centre = [size // 2 for size in weight.shape[2:]]
    for channel in range(kept):
        eye[tuple([channel, channel, *centre])] = 1
    return eye


class TwoStreamConv2d(nn.Conv2d):
    """A convolution by W + I. Shapes: (N, in, H, W) -> (N, out, H', W')."""

    identity: Tensor

    def __init__(self, *sizes: Any, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.register_buffer("identity", identity_on_first_half(self.weight.detach()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight + self.identity, self.bias)


class TwoStreamLinear(nn.Linear):
    """A linear map by W + I. Shapes: (..., in) -> (..., out)."""

    identity: Tensor

    def __init__(self, *sizes: Any, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.register_buffer("identity", identity_on_first_half(self.weight.detach()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight + self.identity, self.bias)
