"""The encoder and one step of the decoder as modules that torch.onnx exports, for any residual structure.

The control flow of fairseq's own modules depends on the data: they apply a mask only if a batch has padding, and extend
their position tables. The modules here run the same layers without branches: they always apply the mask and compute
positions by a cumulative sum.

Shapes: B rows, S source tokens, T target tokens so far, L layers of the decoder, H heads, D channels per head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from ..connections import sites


class StockSite(nn.Module):
    """fairseq's own residual connection and its layer norm, with the interface of ours: LN(w x + f) or w x + f(LN(x)).

    w: fairseq's --scale-resids, or None for 1
    """

    def __init__(self, norm: nn.Module, is_before: bool, weight: Tensor | None = None) -> None:
        super().__init__()
        self.norm, self.is_before, self.weight = norm, is_before, weight

    def enter(self, x: Tensor) -> Tensor:
        return x

    def branch_input(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.is_before else x  # type: ignore[no-any-return]

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Return the next state."""
        total = f + (x if self.weight is None else self.weight * x)
        return total if self.is_before else self.norm(total)  # type: ignore[no-any-return]


def sites_of(layer: Any) -> list[Any]:
    """Return the sites of one of our layers or of a fairseq layer: self_attn, encoder_attn in a decoder, and ffn."""
    if sites(layer):
        names = ("self_attn_residual", "encoder_attn_residual", "ffn_residual")
        return [getattr(layer, name) for name in names if hasattr(layer, name)]
    is_before, weight = bool(layer.normalize_before), getattr(layer, "w_resid", None)
    norms = ("self_attn_layer_norm", "encoder_attn_layer_norm")
    made = [StockSite(getattr(layer, name), is_before) for name in norms if hasattr(layer, name)]
    return [*made, StockSite(layer.final_layer_norm, is_before, weight)]


def check(model: Any) -> None:
    """Raise ValueError naming a fairseq setting that the graphs do not support."""
    cfg, decoder = model.cfg, model.decoder
    wrong = [
        ("--adaptive-softmax-cutoff", decoder.adaptive_softmax is not None),
        ("--no-cross-attention", bool(cfg.no_cross_attention)),
        ("--cross-self-attention", bool(cfg.cross_self_attention)),
    ]
    for stack, kind in ((model.encoder, TransformerEncoderLayerBase), (decoder, TransformerDecoderLayerBase)):
        wrong.append(("embeddings other than nn.Embedding", not isinstance(stack.embed_tokens, nn.Embedding)))
        wrong.append(("--base-layers", not all(isinstance(layer, kind) for layer in stack.layers)))
    for setting, is_set in wrong:
        if is_set:
            raise ValueError(f"{setting}: cannot be exported to ONNX")


def position_table(stack: Any) -> Tensor | None:
    """Return the embeddings of all positions (P, C), sinusoidal or learned; None if there are none."""
    positions = stack.embed_positions
    if positions is None:
        return None
    table = positions.weight if isinstance(positions, nn.Embedding) else positions.weights
    return table.detach().float().clone()  # type: ignore[no-any-return]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return (..., T, H·D) as (..., H, T, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention-weighted mean of the values, with the heads concatenated.

    Shapes: q (B, H, T, D); k, v (B, H, S, D); mask (B, S), true at padding -> (B, T, H·D)
    """
    weights = torch.matmul(q / math.sqrt(q.size(-1)), k.transpose(-1, -2))
    if mask is not None:
        weights = weights.masked_fill(mask[:, None, None, :], -math.inf)
    return torch.matmul(torch.softmax(weights, dim=-1), v).transpose(1, 2).flatten(-2)


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """Return the output of the feed-forward sublayer of a layer, including the norm of fairseq's --scale-fc."""
    hidden = layer.activation_fn(layer.fc1(x))
    norm = getattr(layer, "ffn_layernorm", None)
    return layer.fc2(hidden if norm is None else norm(hidden))  # type: ignore[no-any-return]


class Table(nn.Module):
    """A table of embeddings (N, C), in float32 or in int8 with one scale per row."""

    def __init__(self, rows: Tensor, is_int8: bool) -> None:
        super().__init__()
        self.scales: Tensor | None = None
        if is_int8:
            rows = rows.detach()
            self.scales = rows.abs().amax(dim=1, keepdim=True) / 127
            # A row of zeros has the scale 0.
            rows = (rows / self.scales).nan_to_num().round().to(torch.int8)
        self.rows = rows  # if this is a parameter that the output projection shares, the graph contains it once

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the rows with these numbers. Shapes: (...) -> (..., C)"""
        rows = nn.functional.embedding(numbers, self.rows)
        return rows if self.scales is None else rows.float() * nn.functional.embedding(numbers, self.scales)


class Stack(nn.Module):
    """The parts that both graphs share: embedding, sites, and the end of a stack.

    is_int8: whether the embeddings are stored in int8
    """

    def __init__(self, stack: Any, is_int8: bool = False) -> None:
        super().__init__()
        self.stack = stack
        self.sites = nn.ModuleList([nn.ModuleList(sites_of(layer)) for layer in stack.layers])
        self.words = Table(stack.embed_tokens.weight, is_int8)
        positions = position_table(stack)
        self.positions = None if positions is None else Table(positions, is_int8)
        self.padding = int(stack.padding_idx)

    def run(self, x: Tensor, branches: list[list[Callable[[Tensor], Tensor]]]) -> Tensor:
        """Return the output of the stack. branches: the sublayers of each layer."""
        layers: Any = self.sites
        for layer_sites, layer_branches in zip(layers, branches, strict=True):
            x = layer_sites[0].enter(x)
            for site, branch in zip(layer_sites, layer_branches, strict=True):
                x = site(x, branch(site.branch_input(x)))
        return x if self.stack.layer_norm is None else self.stack.layer_norm(x)


class Encoder(Stack):
    """Encodes a batch of sources and computes the keys and values for the decoder's cross-attention."""

    def __init__(self, model: Any, is_int8: bool = False) -> None:
        super().__init__(model.encoder, is_int8)
        self.attentions = nn.ModuleList([layer.encoder_attn for layer in model.decoder.layers])

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the padding mask (B, S), and keys and values (L, B, H, S, D). tokens: (B, S), padded."""
        mask = tokens.eq(self.padding)
        x = self.embedded(tokens, mask)
        x = x * (~mask).unsqueeze(-1).to(x.dtype)

        def branches(layer: Any) -> list[Callable[[Tensor], Tensor]]:
            def self_attention(seen: Tensor) -> Tensor:
                attention = layer.self_attn
                linears = attention.q_proj, attention.k_proj, attention.v_proj
                q, k, v = (split_heads(linear(seen), attention.num_heads) for linear in linears)
                return attention.out_proj(attend(q, k, v, mask))  # type: ignore[no-any-return]

            return [self_attention, lambda seen: feed_forward(layer, seen)]

        x = self.run(x, [branches(layer) for layer in self.stack.layers])
        attentions: Any = self.attentions
        keys = [split_heads(each.k_proj(x), each.num_heads) for each in attentions]
        values = [split_heads(each.v_proj(x), each.num_heads) for each in attentions]
        return mask, torch.stack(keys), torch.stack(values)

    def embedded(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the input of the first layer."""
        stack = self.stack
        x = stack.embed_scale * self.words(tokens)
        if self.positions is not None:
            is_token = (~mask).to(tokens.dtype)
            x = x + self.positions(torch.cumsum(is_token, dim=1) * is_token + self.padding)
        for module in (stack.layernorm_embedding, stack.quant_noise):
            x = x if module is None else module(x)
        return x  # type: ignore[no-any-return]


class DecoderStep(Stack):
    """Predicts the next token from the last one and the cached keys and values of earlier tokens."""

    def __init__(self, model: Any, is_int8: bool = False) -> None:
        super().__init__(model.decoder, is_int8)

    def forward(
        self,
        token: Tensor,
        step: Tensor,
        mask: Tensor,
        source_keys: Tensor,
        source_values: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p of the next token (B, V), and keys and values (L, B, H, T + 1, D).

        Args:
            token: (B,); step: T, the number of tokens before it, ()
            mask, source_keys, source_values: as returned by the encoder
            keys, values: of the self-attention, (L, B, H, T, D)
        """
        grown_keys: list[Tensor] = []
        grown_values: list[Tensor] = []

        def branches(number: int, layer: Any) -> list[Callable[[Tensor], Tensor]]:
            def self_attention(seen: Tensor) -> Tensor:
                attention = layer.self_attn
                linears = attention.q_proj, attention.k_proj, attention.v_proj
                q, k, v = (split_heads(linear(seen), attention.num_heads) for linear in linears)
                k, v = torch.cat([keys[number], k], dim=2), torch.cat([values[number], v], dim=2)
                grown_keys.append(k)
                grown_values.append(v)
                mixed = attention.out_proj(attend(q, k, v, None))
                if (weight := getattr(layer, "c_attn", None)) is not None:  # fairseq's --scale-heads
                    mixed = (mixed.unflatten(-1, (attention.num_heads, -1)) * weight.unsqueeze(-1)).flatten(-2)
                norm = getattr(layer, "attn_ln", None)  # fairseq's --scale-attn
                return mixed if norm is None else norm(mixed)  # type: ignore[no-any-return]

            def encoder_attention(seen: Tensor) -> Tensor:
                attention = layer.encoder_attn
                q = split_heads(attention.q_proj(seen), attention.num_heads)
                return attention.out_proj(attend(q, source_keys[number], source_values[number], mask))  # type: ignore[no-any-return]

            return [self_attention, encoder_attention, lambda seen: feed_forward(layer, seen)]

        x = self.embedded(token.unsqueeze(-1), step)
        x = self.run(x, [branches(number, layer) for number, layer in enumerate(self.stack.layers)]).squeeze(1)
        if self.stack.project_out_dim is not None:
            x = self.stack.project_out_dim(x)
        log_p = torch.log_softmax(self.stack.output_projection(x), dim=-1)
        return log_p, torch.stack(grown_keys), torch.stack(grown_values)

    def embedded(self, token: Tensor, step: Tensor) -> Tensor:
        """Return the input of the first layer, (B, 1, C)."""
        stack = self.stack
        x = stack.embed_scale * self.words(token)
        for module in (stack.quant_noise, stack.project_in_dim):
            x = x if module is None else module(x)
        if self.positions is not None:
            x = x + self.positions(step + (self.padding + 1))
        return x if stack.layernorm_embedding is None else stack.layernorm_embedding(x)  # type: ignore[no-any-return]
