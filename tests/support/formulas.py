"""Building blocks of reference formulas, in slow and obvious PyTorch. `p` maps names to the parameters of a site."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Parameters = Mapping[str, Tensor]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Apply affine LayerNorm with biased variance over the last dimension (Ba 2016)."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight + bias


def norm(x: Tensor, p: Parameters, name: str = "norm", eps: float = 1e-5) -> Tensor:
    """Apply the LayerNorm of a site that has this name."""
    return layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Apply RMSNorm over the last dimension, with a gain and no bias (Zhang and Sennrich 2019)."""
    mean_square = (x * x).mean(dim=-1, keepdim=True)
    return x / torch.sqrt(mean_square + eps) * weight


def optional_norm(y: Tensor, p: Parameters, options: Any) -> Tensor:
    """Return y, or LN(y) with --residual-norm layer."""
    return norm(y, p) if options.residual_norm == "layer" else y


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """Return every combination of the options' values."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def largest_row(site: nn.Module) -> float:
    """Return the largest row sum of |W| over all matrices W of a site."""
    products = [p for key, p in site.named_parameters() if p.dim() == 2 and not key.endswith("output_weight")]
    return max((float(p.detach().abs().sum(1).max()) for p in products), default=0.0)


def assert_xavier_uniform(values: Tensor, fan_in: int, fan_out: int) -> None:
    """Assert a Xavier-uniform distribution by its bound, which some values nearly reach, its deviation and its mean."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert values.abs().max() <= bound
    assert values.abs().max() > 0.97 * bound
    assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert abs(values.mean()) < 0.15 * bound
