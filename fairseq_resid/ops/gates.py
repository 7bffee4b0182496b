"""The logits of the gates that predict scaling factors from the shortcut x and the branch F."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor


def scaling_gate(
    x: Tensor, f: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, output_weight: Tensor, output_bias: Tensor
) -> Tensor:
    """Return the logits of G scaling gates, one scalar per position and gate.

    Formula:  S_g(x, F) = tanh([x;F] W_f + b_f) W_ff + b_ff, each gate g with its own parameters
    Source:   Self-Adaptive Scaling, eq. 2. [x;F] W_f is computed as x W_x + F W_F, so that nothing is concatenated,
              and the gates of a site share these GEMMs
    Shapes:   x, f: (..., C) -> (..., G); hidden_weight (G·C, 2C): rows by gate, columns x then F; hidden_bias (G·C,);
              output_weight (G, C); output_bias (G,)
    Dtype:    that of the input
    """
    channels = x.size(-1)
    gates = output_weight.size(0)
    x_weight, f_weight = hidden_weight.chunk(2, 1)  # the gradients of two slices would be padded with zeros and added
    hidden = functional.linear(x.reshape(-1, channels), x_weight, hidden_bias)
    hidden = torch.addmm(hidden, f.reshape(-1, channels), f_weight.t())
    hidden = torch.tanh_(hidden)  # in place: no derivative needs the input of tanh
    # Row g has the weights of gate g in its own columns and 0 elsewhere, so that one GEMM is enough, without the copy
    # that a batched GEMM needs.
    own = torch.eye(gates, dtype=output_weight.dtype, device=output_weight.device)
    block_weight = (own.unsqueeze(-1) * output_weight).view(gates, gates * channels)
    return functional.linear(hidden, block_weight, output_bias).reshape(*x.shape[:-1], gates)


def single_layer_gate(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the logits of G single-layer gates, one scalar per position and gate.

    Formula:  S_g(x, F) = [x;F] W_f + b_f, computed as x W_x + F W_F + b_f
    Source:   Self-Adaptive Scaling, section 5, "Scaling Gate (Single Layer)"
    Shapes:   x, f: (..., C) -> (..., G); weight (G, 2C): columns x then F; bias (G,)
    Dtype:    that of the input
    """
    x_weight, f_weight = weight.chunk(2, 1)
    return functional.linear(x, x_weight, bias) + functional.linear(f, f_weight)


def dense_gate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the logits of a vector gate over the shortcut alone.

    Formula:  T(x) = x W + b
    Source:   Srivastava 2015's transform gate; He 2016b's shortcut gate; SAS paper, table 6
    Shapes:   x: (..., C) -> (..., G·C) for G gates; weight (G·C, C), transposed as in nn.Linear; bias (G·C,)
    Dtype:    that of the input
    """
    return functional.linear(x, weight, bias)
