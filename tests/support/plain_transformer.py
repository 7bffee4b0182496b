"""A plain post-norm or pre-norm Transformer that computes log p from folded weights, one sentence at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

ACTIVATIONS = {"relu": torch.relu, "gelu": functional.gelu}


def linear(x: Tensor, weights: Any) -> Tensor:
    return functional.linear(x, weights.weight, weights.bias)


def norm(x: Tensor, weights: Any) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weights.weight, weights.bias, 1e-5)


def attend(x: Tensor, keys: Tensor, linears: Any, heads: int, causal: bool) -> Tensor:
    """Return the result of multi-head attention. Shapes: x (T, C), keys (S, C) -> (T, C)."""

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (heads, -1)).transpose(0, 1)

    q, k, v = (
        split(linear(y, linears[name])) for y, name in ((x, "q_proj"), (keys, "k_proj"), (keys, "v_proj"))
    )  # (H, T, D)
    weights = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
    if causal:
        weights = weights + torch.full(weights.shape[1:], -math.inf).triu(1)
    mixed = (weights.softmax(-1) @ v).transpose(0, 1).flatten(1)
    return linear(mixed, linears["out_proj"])


def run_sublayer(x: Tensor, sublayer: Any, stack: Any, memory: Tensor | None) -> Tensor:
    linears = sublayer.linears

    def branch(seen: Tensor) -> Tensor:
        if sublayer.kind == "ffn":
            return linear(ACTIVATIONS[stack.activation](linear(seen, linears["fc1"])), linears["fc2"])
        keys = memory if sublayer.kind == "encoder_attn" else seen
        assert keys is not None
        causal = memory is not None and sublayer.kind == "self_attn"
        return attend(seen, keys, linears, stack.heads, causal)

    if stack.graph == "post_norm":
        return norm(x + branch(x), sublayer.norms[0])
    if stack.graph == "pre_norm":
        return x + branch(norm(x, sublayer.norms[0]))
    return x + norm(branch(norm(x, sublayer.norms[0])), sublayer.norms[1])


def run_stack(stack: Any, tokens: Tensor, memory: Tensor | None = None) -> Tensor:
    """Return the output (T, C) of an encoder or, with a memory, of a decoder, for one sentence (T,)."""
    x = stack.scale * stack.embedding[tokens] + stack.positions[: len(tokens)]
    if stack.embedding_norm is not None:
        x = norm(x, stack.embedding_norm)
    for layer in stack.layers:
        for sublayer in layer:
            x = run_sublayer(x, sublayer, stack, memory)
    return x if stack.final_norm is None else norm(x, stack.final_norm)


def log_probabilities(folded: Any, source: Tensor, previous: Tensor) -> Tensor:
    """Return log p (T, V) after each of the given target tokens. Shapes: source (S,), previous (T,)."""
    memory = run_stack(folded.encoder, source)
    return functional.linear(run_stack(folded.decoder, previous, memory), folded.projection).log_softmax(-1)
