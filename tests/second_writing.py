"""Four structures in slow, obvious PyTorch, written from their sources by somebody who had not seen the package's.

`f` is the sublayer, after dropout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

F = Callable[[Tensor], Tensor]
Site = tuple[F, Tensor, Tensor]  # f, ln_weight, ln_bias
AttnSite = tuple[F, Tensor | None, Tensor | None, Tensor, Tensor]  # f, query, gain, ln_weight, ln_bias


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension, biased variance, affine (Ba 2016)."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """RMSNorm over the last dimension, with a gain and no bias (Zhang and Sennrich 2019)."""
    mean_square = (x * x).mean(dim=-1, keepdim=True)
    return x / torch.sqrt(mean_square + eps) * weight


def b2t(x: Tensor, layers: list[list[Site]]) -> Tensor:
    """B2T, Takase 2022; b2t_connection `transformer_layer.py`: post-LN, and what the layer got is added once more
    before the layer's last norm. The stack has no final norm."""
    for layer in layers:
        bottom = x
        for number, (f, ln_weight, ln_bias) in enumerate(layer, start=1):
            total = x + f(x)
            if number == len(layer):
                total = bottom + total
            x = layer_norm(total, ln_weight, ln_bias)
    return x


def population_variance(x: Tensor) -> float:
    """numpy's `var` of the flattened tensor (divided by the count, not the count less one), no gradient."""
    flat = x.detach().reshape(-1)
    centred = flat - flat.mean()
    return float((centred * centred).mean())


def admin_start(x: Tensor, sites: list[Site]) -> tuple[list[float], Tensor]:
    """Admin, Liu 2020; Transformer-Clinic `transformer_layer.py`, `adaptive-profiling`: LN(omega x + F), omega_1 = 1,
    omega_(i+1)^2 = Var(omega_i x_i) + Var(F_i), each omega used at once. Returns the omegas and the output."""
    omegas: list[float] = []
    omega = 1.0
    for f, ln_weight, ln_bias in sites:
        omegas.append(omega)
        skip = omega * x
        branch = f(x)
        x = layer_norm(skip + branch, ln_weight, ln_bias)
        omega = (population_variance(skip) + population_variance(branch)) ** 0.5
    return omegas, x


def attend(values: list[Tensor], query: Tensor, gain: Tensor) -> Tensor:
    """Attention over depth, arXiv 2603.15031: softmax over i of query . RMSNorm(v_i), times the bare v_i."""
    scores = torch.stack([(rms_norm(value, gain) * query).sum(dim=-1) for value in values])
    shares = torch.softmax(scores, dim=0)
    result = shares[0].unsqueeze(-1) * values[0]
    for share, value in zip(shares[1:], values[1:], strict=True):
        result = result + share.unsqueeze(-1) * value
    return result


def attn_residual(
    x: Tensor, sites: list[AttnSite], end: tuple[Tensor, Tensor, Tensor, Tensor], block_size: int = 1
) -> Tensor:
    """Attention residuals, Kimi Team 2026, arXiv 2603.15031 (row `attn_residual` of family.md): block_size 1 is the
    full form; above, `finished` holds b_0 (the embedding), b_1, ... and `running` the sum of the open block."""
    finished: list[Tensor] = [x]
    running: list[Tensor] = []  # the branches of the block that is open, not yet added up
    for f, query, gain, ln_weight, ln_bias in sites:
        values = [*finished, sum(running[1:], running[0])] if running else finished
        if query is None or gain is None:
            assert len(values) == 1, "only the first site goes without a query"
            h = values[0]
        else:
            h = attend(values, query, gain)
        running = [*running, f(layer_norm(h, ln_weight, ln_bias))]
        if len(running) == block_size:
            finished = [*finished, sum(running[1:], running[0])]
            running = []
    end_query, end_gain, ln_weight, ln_bias = end
    values = [*finished, sum(running[1:], running[0])] if running else finished
    return layer_norm(attend(values, end_query, end_gain), ln_weight, ln_bias)


def dense_former(x: Tensor, layers: list[list[Site]], weights: list[Tensor], end: tuple[Tensor, Tensor]) -> Tensor:
    """DenseFormer, Pagliardini 2024; `denseformer.py`, dilation 1, period 1: after each pre-LN layer, the weighted
    sum of the embedding and of every layer's output before averaging; then the final norm."""
    outputs: list[Tensor] = [x]
    for layer, weight in zip(layers, weights, strict=True):
        for f, ln_weight, ln_bias in layer:
            x = x + f(layer_norm(x, ln_weight, ln_bias))
        outputs = [*outputs, x]
        assert weight.shape == (len(outputs),)
        x = weight[0] * outputs[0]
        for scalar, output in zip(weight[1:], outputs[1:], strict=True):
            x = x + scalar * output
    return layer_norm(x, end[0], end[1])
