"""The norms that --norm selects. Every structure creates its norms with `place.norm(C)`, so all norms work with it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .tensors import widened

EPS = 1e-5


def layer_norm(dim: int) -> nn.Module:
    """Return an affine LayerNorm with eps 1e-5. It is the default."""
    return nn.LayerNorm(dim, eps=EPS)


def rms_norm(dim: int) -> nn.Module:
    """Return γ ⊙ x / √(mean(x²) + 1e-5): RMSNorm, Zhang and Sennrich 2019. γ in R^C starts at 1."""
    return nn.RMSNorm(dim, eps=EPS)


class ScaleNorm(nn.Module):
    """Scales x to a learned length.

    Formula:  g x / max(‖x‖, 1e-5), g starts at √C
    Source:   Nguyen and Salazar 2019, section 2.2, and their code (tnq177/transformers_without_tears)
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(math.sqrt(dim)))

    def length(self, x: Tensor) -> Tensor:
        """Return the length of x over its channels, in fp32 for 16-bit x."""
        return torch.linalg.vector_norm(widened(x), dim=-1, keepdim=True).clamp(min=EPS)

    def forward(self, x: Tensor) -> Tensor:
        return (x * (self.weight / self.length(x))).to(x.dtype)


class DynamicTanh(nn.Module):
    """Squashes x instead of normalising it, and computes no statistics.

    Formula:  γ ⊙ tanh(αx) + β, α a learned number that starts at 0.5; γ and β in R^C start at 1 and 0
    Source:   Zhu 2025, DyT (arXiv 2503.10622), algorithm 1
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self.weight, torch.tanh(self.alpha * x))


class DynamicErf(nn.Module):
    """Squashes x instead of normalising it, and computes no statistics.

    Formula:  γ ⊙ erf(αx + s) + β, α and s learned numbers that start at 0.5 and 0; γ and β in R^C start at 1 and 0
    Source:   Chen 2025, Derf (arXiv 2512.10938)
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.0))
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self.weight, torch.erf(self.alpha * x + self.shift))


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": layer_norm,
    "rms": rms_norm,
    "scale": ScaleNorm,
    "dyt": DynamicTanh,
    "derf": DynamicErf,
}


def divisor(norm: nn.Module, x: Tensor) -> Tensor | None:
    """Return the divisor that a norm applies before its gain; None if the norm does not divide.

    The divisor has one value for each position of x. `--norm batch`, the BatchNorm of image models, divides by its
    running standard deviation instead, which has one value for each channel.
    """
    if isinstance(norm, ScaleNorm):
        return norm.length(x)
    if isinstance(norm, nn.RMSNorm):
        return (x.float().square().mean(-1, keepdim=True) + EPS).sqrt()
    if isinstance(norm, nn.LayerNorm):
        return (x.float().var(-1, correction=0, keepdim=True) + EPS).sqrt()
    running = getattr(norm, "running_var", None)
    return None if running is None else (running + EPS).sqrt()
