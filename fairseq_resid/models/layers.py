"""fairseq's encoder and decoder layers with one residual connection per sublayer.

The attention modules, the feed-forward networks, their names in state dicts and quantisation noise are fairseq's. Only
the residual connection around each sublayer is ours; it replaces dropout and layer norm:

    state ──┬────────────────────────────────► site ──► state        state = site(state, f(site.branch_input(state)))
            └─► site.branch_input ─► f ─────────┘

Shapes: T target or source time, B batch, C channels, S source time. The state is (T, B, n·C), n = 1 for most
structures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from .. import connections
from ..connections import Place
from ..fairseq_patches.model import BETTER_TRANSFORMER_COPIES
from .structures import options_of

# default: the initial values of nn.Linear, as in stock fairseq; xavier: those of tensor2tensor.
FFN_INITS = ("default", "xavier")


class ResidualEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer with the sites `self_attn_residual` and `ffn_residual`.

    It disables the BetterTransformer path of fairseq 0.12.2, which skips a layer's own forward in eval mode.
    """

    # fairseq 0.12.2 overrides this to fill its BetterTransformer copies from the state dict; this layer has none.
    _load_from_state_dict = nn.Module._load_from_state_dict

    def __init__(self, cfg, places: Sequence[Place], return_fc: bool = False) -> None:  # type: ignore[no-untyped-def]
        super().__init__(cfg, return_fc=return_fc)
        for name in (*BETTER_TRANSFORMER_COPIES, "self_attn_layer_norm", "final_layer_norm", "dropout_module"):
            if hasattr(self, name):
                delattr(self, name)
        self.can_use_fastpath = False
        self.self_attn_residual, self.ffn_residual = build_sites(cfg, places, type(self).__name__)
        init_branches(self, cfg.ffn_init)

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        attn_mask: Tensor | None = None,
    ):
        """Return the state (T, B, n·C) and, with return_fc, the output of the feed-forward network.

        Args:
            x: (T, B, C) or a state
            encoder_padding_mask: (B, T), true at padding
            attn_mask: (T, T), true where attention is not allowed
        """
        if attn_mask is not None:
            attn_mask = attn_mask.masked_fill(attn_mask.to(torch.bool), -1e8 if x.dtype == torch.float32 else -1e4)

        x = self.self_attn_residual.enter(x)
        seen = self.self_attn_residual.branch_input(x)
        attended, _ = self.self_attn(
            query=seen,
            key=seen,
            value=seen,
            key_padding_mask=encoder_padding_mask,
            need_weights=False,
            attn_mask=attn_mask,
        )
        x = self.self_attn_residual(x, attended)

        seen = self.ffn_residual.branch_input(x)
        hidden = self.activation_dropout_module(self.activation_fn(self.fc1(seen)))
        fc_result = self.fc2(hidden)
        x = self.ffn_residual(x, fc_result)

        return (x, fc_result) if self.return_fc else x


class ResidualDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with the sites `self_attn_residual`, `encoder_attn_residual` and `ffn_residual`."""

    def __init__(self, cfg, places: Sequence[Place], no_encoder_attn: bool = False) -> None:  # type: ignore[no-untyped-def]
        super().__init__(cfg, no_encoder_attn)
        for name in ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm", "dropout_module"):
            delattr(self, name)
        sites = build_sites(cfg, places, type(self).__name__)
        # Keep this order: Adam's state in a checkpoint depends on the order of the parameters.
        self.self_attn_residual = sites[0]
        self.encoder_attn_residual = None if no_encoder_attn else sites[1]
        self.ffn_residual = sites[-1]
        init_branches(self, cfg.ffn_init)

    def forward(
        self,
        x,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ):
        """Return the state (T, B, n·C), the encoder attention, and None.

        Args:
            x: (T, B, C) or a state; T is 1 in incremental decoding
            encoder_out: (S, B, C)
            encoder_padding_mask: (B, S), true at padding
            incremental_state: keys and values of earlier steps, by attention module
            self_attn_mask: (T, T); self_attn_padding_mask: (B, T)
            need_attn: return attention weights averaged over heads; need_head_weights: return the weights of each head
        """
        if need_head_weights:
            need_attn = True

        x = self.self_attn_residual.enter(x)
        seen = self.self_attn_residual.branch_input(x)
        buffer = self.self_attn._get_input_buffer(incremental_state)
        keys = seen
        if self.cross_self_attention and not (
            incremental_state is not None and buffer is not None and "prev_key" in buffer
        ):
            assert encoder_out is not None
            if self_attn_mask is not None:
                self_attn_mask = torch.cat((x.new_zeros(x.size(0), encoder_out.size(0)), self_attn_mask), dim=1)
            if self_attn_padding_mask is not None:
                if encoder_padding_mask is None:
                    encoder_padding_mask = self_attn_padding_mask.new_zeros(encoder_out.size(1), encoder_out.size(0))
                self_attn_padding_mask = torch.cat((encoder_padding_mask, self_attn_padding_mask), dim=1)
            keys = torch.cat((encoder_out, seen), dim=0)
        attended, attn = self.self_attn(
            query=seen,
            key=keys,
            value=keys,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        x = self.self_attn_residual(x, attended)

        if self.encoder_attn is not None and self.encoder_attn_residual is not None and encoder_out is not None:
            seen = self.encoder_attn_residual.branch_input(x)
            attended, attn = self.encoder_attn(
                query=seen,
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
            )
            x = self.encoder_attn_residual(x, attended)

        seen = self.ffn_residual.branch_input(x)
        hidden = self.activation_dropout_module(self.activation_fn(self.fc1(seen)))
        x = self.ffn_residual(x, self.fc2(hidden))

        return x, attn, None


class SiteDropout(FairseqDropout):
    """fairseq's dropout, compiled with the formula by --residual-backend compile."""

    compiles = True


def build_site(cfg, place: Place, layer_name: str) -> connections.ResidualConnection:  # type: ignore[no-untyped-def]
    """Return the connection for a site; --retain-dropout-modules selects its dropout modules by `layer_name`."""
    dropout = SiteDropout(cfg.dropout, module_name=layer_name)
    site = connections.build(cfg.residual, place, dropout, backend=cfg.residual_backend, **options_of(cfg))
    for name, module in site.named_children():
        if type(module) is nn.Dropout:  # the structure's own dropout; --retain-dropout only affects FairseqDropout
            setattr(site, name, SiteDropout(module.p, module_name=layer_name))
    return site


def build_sites(cfg, places: Sequence[Place], layer_name: str) -> list[connections.ResidualConnection]:  # type: ignore[no-untyped-def]
    first, *others = (build_site(cfg, place, layer_name) for place in places)
    for site in others:
        site.share(first)
    return [first, *others]


def init_branches(layer: Any, ffn_init: str) -> None:
    """Reinitialise the sublayers of a layer as --ffn-init and the layer's structure require."""
    if ffn_init == "xavier":
        for linear in (layer.fc1, layer.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
    for name in ("self_attn", "encoder_attn"):
        attention, site = getattr(layer, name, None), getattr(layer, f"{name}_residual", None)
        if attention is not None and site is not None:
            site.init_branch(
                query=attention.q_proj, key=attention.k_proj, value=attention.v_proj, output=attention.out_proj
            )
    layer.ffn_residual.init_branch(fc1=layer.fc1, fc2=layer.fc2)
