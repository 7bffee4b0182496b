"""The translation model with residual structures: its options, its stacks, and the names in its checkpoints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
)
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor

from .. import connections
from ..connections import Place
from ..fairseq_patches import UserError
from ..fairseq_patches.model import BETTER_TRANSFORMER_COPIES
from .layers import FFN_INITS, ResidualDecoderLayer, ResidualEncoderLayer
from .profiling import LENGTH, profile, sentences
from .structures import Structured, add_flags, check_norm, check_widths, options_of, settle

# Scalings of fairseq's own decoder layer (modules/transformer_layer.py). They belong to another residual structure
# (NormFormer) and would be silently ignored here.
FOREIGN_SCALINGS = ("scale_attn", "scale_fc", "scale_heads", "scale_resids")

# Versions before 0.3.3 built a small site of each of these structures when they resolved the options, before they built
# the model. These sites are still built, so that a seed gives the same initial values as before.
DRAWN_AHEAD = ("highway", "linear_shortcut", "sas", "shortcut_gate")

# fairseq's names of the norms, and our names of the first norm of each site.
STOCK_NORMS = {
    "self_attn_layer_norm": "self_attn_residual.norm",
    "encoder_attn_layer_norm": "encoder_attn_residual.norm",
    "final_layer_norm": "ffn_residual.norm",
}

# fairseq's class names for --retain-dropout-modules (module_name in its code), and the classes that replace them.
OWN_CLASSES = {
    "TransformerEncoder": "ResidualTransformerEncoder",
    "TransformerDecoder": "ResidualTransformerDecoder",
    "TransformerEncoderLayerBase": "ResidualEncoderLayer",
    "TransformerDecoderLayerBase": "ResidualDecoderLayer",
}


def resolve_residual(args: argparse.Namespace) -> None:
    """Resolve `args.residual`, its options and the normalize_before flags.

    Everything is written to `args`, so that checkpoints do not depend on later defaults.
    --residual pre_ln sets both normalize_before flags; both flags without --residual mean pre_ln.

    Raises: UserError if flags contradict each other or the structure.
    """
    for name in FOREIGN_SCALINGS:
        if getattr(args, name, None):
            raise UserError(f"--{name.replace('_', '-')}: not supported by residual structures; omit the flag")
    flags = {
        name: bool(getattr(args, name, False)) for name in ("encoder_normalize_before", "decoder_normalize_before")
    }
    options = settle(args, "pre_ln" if all(flags.values()) else "post_ln", connections.NORMS)
    residual = args.residual
    try:
        final_norm = connections.resolve_final_norm(residual, getattr(args, "final_norm", None))
    except connections.InvalidOption as error:
        raise UserError(error.flags) from None
    check_norm(args, final_norm)
    check_widths(args, (args.encoder_embed_dim, args.decoder_embed_dim))
    if residual in DRAWN_AHEAD:
        connections.build(residual, 1, **options.values())
    if any(flags.values()) and not (residual == "pre_ln" and all(flags.values())):
        shown = " ".join(f"--{name.replace('_', '-')}" for name, on in flags.items() if on)
        raise UserError(
            f"{shown} with --residual {residual}: not supported; use only --residual pre_ln, which sets both"
        )
    if getattr(args, "no_decoder_final_norm", False) and residual != "pre_ln":
        raise UserError(
            f"--no-decoder-final-norm with --residual {residual}: only pre_ln supports it; use --final-norm"
        )
    # Record the depth of the trained model, because --encoder-layers-to-keep makes fairseq overwrite the number of
    # layers.
    is_pruned = getattr(args, "encoder_layers_to_keep", None) or getattr(args, "decoder_layers_to_keep", None)
    if not is_pruned or getattr(args, "residual_depths", None) is None:
        args.residual_depths = [args.encoder_layers, args.decoder_layers]
    if getattr(args, "base_layers", 0) and connections.has_wide_state(residual):
        raise UserError(
            f"--base-layers {args.base_layers} with --residual {residual}: the state of {residual} is wider than C "
            "channels; use --base-layers 0"
        )
    if connections.needs_every_layer(residual, options):
        dropping = ("encoder_layerdrop", "decoder_layerdrop", "encoder_layers_to_keep", "decoder_layers_to_keep")
        for name in dropping:
            if getattr(args, name, None):
                chosen = " ".join(f"--{option.replace('_', '-')} {value}" for option, value in options.values().items())
                raise UserError(
                    f"--{name.replace('_', '-')} {getattr(args, name)} with --residual {residual} {chosen}".rstrip()
                    + ": the weights of each layer depend on its position, so no layer may be dropped"
                )
    if connections.profiler(residual, options) and getattr(args, "ddp_backend", "") == "fully_sharded":
        raise UserError(
            f"--ddp-backend fully_sharded with --residual {residual}: its first pass does not support sharded weights; "
            "use --admin-start closed"
        )
    ffn_init = getattr(args, "ffn_init", None) or "default"
    if ffn_init != "default" and connections.draws_branches(residual):
        raise UserError(f"--ffn-init {ffn_init}: the residual {residual} has its own initial values; use default")
    args.ffn_init = ffn_init
    if connections.structure(residual).final_norm is not None:
        args.final_norm = "layer" if final_norm else "none"
    args.encoder_normalize_before = args.decoder_normalize_before = residual == "pre_ln"


def wrap(layer, cfg):  # type: ignore[no-untyped-def]
    """Wrap a layer for activation checkpointing and FSDP as fairseq does, if the config enables them."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is wrapped regardless of its size.
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def rename_stock_keys(state_dict: dict[str, Any], name: str) -> None:
    """Rename, in place, the keys of a stock checkpoint for the encoder or decoder called `name`.

    Each layer norm becomes the first norm of its site. The BetterTransformer copies of fairseq 0.12.2 are removed.
    """
    layer = re.compile(rf"{re.escape(name)}\.layers\.\d+\.(\w+)(\.\w+)?")
    for key in list(state_dict):
        match = layer.fullmatch(key)
        if match and match[1] in STOCK_NORMS:
            head = key[: match.start(1)]
            state_dict[f"{head}{STOCK_NORMS[match[1]]}{match[2]}"] = state_dict.pop(key)
        elif match and match[1] in BETTER_TRANSFORMER_COPIES and match[2] is None:
            del state_dict[key]


def norm_of(cfg):  # type: ignore[no-untyped-def]
    """Return the function that makes the norms; checkpoints older than --norm use LayerNorm."""
    return connections.NORMS[getattr(cfg, "norm", None) or "layer"]


def depths_of(cfg, stack: str) -> dict[str, int]:  # type: ignore[no-untyped-def]
    """Return the number of layers of each stack of the trained model; of `stack` alone if it has no cross-attention."""
    depths = dict(zip(("encoder", "decoder"), cfg.residual_depths, strict=True))
    return {stack: depths[stack]} if cfg.no_cross_attention else depths


def layer_places(cfg, stack: str, kinds: Sequence[str], built: int) -> list[Place]:  # type: ignore[no-untyped-def]
    """Return the places of the sites in the next layer of a stack, of which `built` layers have been built.

    The layers of a pruned model (--encoder-layers-to-keep) keep the places in which they were trained.
    """
    part = getattr(cfg, stack)
    kept = part.layers_to_keep
    layer = sorted(int(number) for number in kept.split(","))[built] if kept else built
    depths = depths_of(cfg, stack)
    return [
        Place(
            part.embed_dim, stack, kind, layer, number + 1 == len(kinds), layer * len(kinds) + number,
            depths[stack] * len(kinds), depths, norm_of(cfg),
        )
        for number, kind in enumerate(kinds)
    ]  # fmt: skip


def stack_end(cfg, stack: str, sites: int) -> connections.ResidualStream | None:  # type: ignore[no-untyped-def]
    """Return the module that ends a stack, for the attribute called `layer_norm` in stock fairseq."""
    depths = depths_of(cfg, stack)
    place = Place(
        getattr(cfg, stack).embed_dim, stack, "stream", depths[stack], True, sites * depths[stack],
        sites * depths[stack], depths, norm_of(cfg),
    )  # fmt: skip
    has_norm = getattr(cfg, "final_norm", "none") == "layer" and not (stack == "decoder" and cfg.no_decoder_final_norm)
    return connections.build_stream(cfg.residual, place, has_norm, **options_of(cfg))


class ResidualTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder, built from ResidualEncoderLayers. With return_all_hiddens, it returns the raw states."""

    KINDS = ("self_attn", "ffn")

    def __init__(self, cfg, *rest, **more):  # type: ignore[no-untyped-def]
        super().__init__(cfg, *rest, **more)
        self.layer_norm = stack_end(cfg, "encoder", len(self.KINDS))

    def build_encoder_layer(self, cfg):  # type: ignore[no-untyped-def]
        self.built = getattr(self, "built", 0) + 1  # fairseq builds layers in order and passes no index
        places = layer_places(cfg, "encoder", self.KINDS, self.built - 1)
        return wrap(ResidualEncoderLayer(cfg, places, return_fc=self.return_fc), cfg)

    def upgrade_state_dict_named(self, state_dict, name):  # type: ignore[no-untyped-def]
        end = self.layer_norm  # fairseq removes it for checkpoints with version 1 or without a version
        state_dict = super().upgrade_state_dict_named(state_dict, name)
        self.layer_norm = end
        rename_stock_keys(state_dict, name)
        return state_dict


class ResidualTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder, built from ResidualDecoderLayers. Its inner_states are the raw states."""

    def __init__(self, cfg, dictionary, embed_tokens, no_encoder_attn=False, **more):  # type: ignore[no-untyped-def]
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn, **more)
        self.layer_norm = stack_end(cfg, "decoder", len(decoder_kinds(no_encoder_attn)))

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False):  # type: ignore[no-untyped-def]
        self.built = getattr(self, "built", 0) + 1
        places = layer_places(cfg, "decoder", decoder_kinds(no_encoder_attn), self.built - 1)
        return wrap(ResidualDecoderLayer(cfg, places, no_encoder_attn), cfg)

    def upgrade_state_dict_named(self, state_dict, name):  # type: ignore[no-untyped-def]
        end = self.layer_norm
        state_dict = super().upgrade_state_dict_named(state_dict, name)
        self.layer_norm = end
        rename_stock_keys(state_dict, name)
        return state_dict


def decoder_kinds(no_encoder_attn: bool) -> tuple[str, ...]:
    return ("self_attn", "ffn") if no_encoder_attn else ("self_attn", "encoder_attn", "ffn")


@register_model("transformer_resid")
class ResidualTransformerModel(Structured, TransformerModel):
    """fairseq's Transformer with a choice of residual structure: --arch transformer_resid --residual NAME."""

    @classmethod
    def add_args(cls, parser) -> None:  # type: ignore[no-untyped-def]
        """Add fairseq's Transformer flags, --residual, and a flag for every option of the residual structures."""
        gen_parser_from_dataclass(parser, TransformerConfig(), delete_default=True, with_prefix="")
        add_flags(parser, "post_ln", connections.NORMS)
        parser.add_argument(
            "--final-norm",
            choices=connections.FINAL_NORMS,
            help="norm at the end of both stacks (default: as in the structure's source)",
        )
        parser.add_argument(
            "--ffn-init",
            choices=FFN_INITS,
            help="initial values of the feed-forward sublayer: default, as in nn.Linear; xavier, Xavier-uniform "
            "weights and zero biases, as in tensor2tensor (default: default)",
        )

    @classmethod
    def build_model(cls, args, task):  # type: ignore[no-untyped-def]
        """Return a new model from a parsed command line or from the config of a checkpoint.

        Defaults are written to `args`, as in stock fairseq, and so are the results of resolve_residual.

        Raises: UserError for contradictory options.
        """
        base_architecture(args)
        resolve_residual(args)
        model = super().build_model(args, task)
        profiler = connections.profiler(args.residual, connections.resolve(args.residual, options_of(args)))
        # The config records this, so that the model of a checkpoint, which has trained values, is not profiled again.
        if profiler is not None and not getattr(args, "residual_profiled", False):
            profile(model, profiler, task)
            args.residual_profiled = True
        model.log_coefficients(args)
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):  # type: ignore[no-untyped-def]
        return ResidualTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):  # type: ignore[no-untyped-def]
        return ResidualTransformerDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def random_source(self, task: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random source sentences and their lengths, for the first pass through a new model (profiling.py)."""
        words = sentences(task.source_dictionary, min(LENGTH, self.encoder.max_positions()), generator)
        return words, torch.full(words.shape[:1], words.size(1))

    def make_generation_fast_(self, name="", retain_dropout_modules=None, **kwargs):  # type: ignore[no-untyped-def]
        """Prepare for inference as fairseq does; --retain-dropout-modules accepts fairseq's class names and ours."""
        names = retain_dropout_modules
        if names is not None:
            # This is a list from Python or a string from the command line; fairseq tests both with `in`.
            own = [mine for theirs, mine in OWN_CLASSES.items() if theirs in names]
            names = " ".join([names, *own]) if isinstance(names, str) else [*names, *own]
        super().make_generation_fast_(retain_dropout_modules=names, **kwargs)
