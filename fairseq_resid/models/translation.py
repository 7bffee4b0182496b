"""The translation model with residual structures: its options, its stacks, and the names in its checkpoints."""

from __future__ import annotations

import argparse
import re
import traceback
from typing import Any

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

from .. import connections
from ..compat import BETTER_TRANSFORMER_COPIES, UserError
from ..ops import BACKENDS, absence
from .layers import ResidualDecoderLayer, ResidualEncoderLayer

# Scalings that fairseq's own decoder layer reads off a config (modules/transformer_layer.py). They belong to another
# residual structure (NormFormer), and would be silently ignored here.
FOREIGN_SCALINGS = ("scale_attn", "scale_fc", "scale_heads", "scale_resids")

# Stock's name of each site's norm, and ours of its first one.
STOCK_NORMS = {
    "self_attn_layer_norm": "self_attn_residual.norm",
    "encoder_attn_layer_norm": "encoder_attn_residual.norm",
    "final_layer_norm": "ffn_residual.norm",
}

# Stock's names for --retain-dropout-modules (module_name in its sources), and our classes in their place.
OWN_CLASSES = {
    "TransformerEncoder": "ResidualTransformerEncoder",
    "TransformerDecoder": "ResidualTransformerDecoder",
    "TransformerEncoderLayerBase": "ResidualEncoderLayer",
    "TransformerDecoderLayerBase": "ResidualDecoderLayer",
}


def require_namespace(args: object) -> None:
    """Raise UserError unless `args` is an argparse.Namespace, as every model with --arch takes it."""
    if not isinstance(args, argparse.Namespace):
        raise UserError(
            f"transformer_resid takes an argparse.Namespace, not {type(args).__name__}: "
            "fairseq.options.get_args(DATA, arch=...) makes one"
        )


def resolve_residual(args: argparse.Namespace) -> None:
    """Settle `args.residual`, its options and the normalize_before flags.

    Everything is written back to `args`, so that a checkpoint says what it is whatever the defaults become.
    --residual pre_ln sets both normalize_before flags; both flags without --residual mean pre_ln.

    Raises: UserError if flags contradict each other or the structure.
    """
    for name in FOREIGN_SCALINGS:
        if getattr(args, name, None):
            raise UserError(f"--{name.replace('_', '-')}: fairseq's own residual scaling cannot go with --residual")
    given = getattr(args, "residual", None)
    flags = {
        name: bool(getattr(args, name, False)) for name in ("encoder_normalize_before", "decoder_normalize_before")
    }
    backend = getattr(args, "residual_backend", None) or "auto"  # a file from before the flag has none
    try:
        residual = connections.canonical(given or ("pre_ln" if all(flags.values()) else "post_ln"))
        options = connections.resolve(residual, {name: getattr(args, name, None) for name in connections.all_options()})
        # Values out of range: now, not after the data is loaded.
        connections.build(residual, 1, backend=backend, **options)
    except connections.InvalidOption as error:
        raise UserError(str(error)) from None
    # Only of a training: a namespace with _name is a checkpoint's, and decodes wherever it is.
    if backend == "triton" and not hasattr(args, "_name") and (reason := absence(getattr(args, "cpu", False))):
        raise UserError(f"--residual-backend triton: {reason}; use --residual-backend auto")
    if any(flags.values()) and not (residual == "pre_ln" and all(flags.values())):
        shown = " ".join(f"--{name.replace('_', '-')}" for name, on in flags.items() if on)
        raise UserError(f"{shown} with --residual {residual}: only pre_ln normalises before, and in both stacks")
    if getattr(args, "no_decoder_final_norm", False) and residual != "pre_ln":
        raise UserError(f"--no-decoder-final-norm with --residual {residual}: only pre_ln ends a stack in a norm")
    args.residual = residual
    args.residual_backend = backend
    args.encoder_normalize_before = args.decoder_normalize_before = residual == "pre_ln"
    vars(args).update(options)


def wrap(layer, cfg):  # type: ignore[no-untyped-def]
    """Wrap a layer for activation checkpointing and FSDP, if the config asks for them, as stock does."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is always wrapped, whatever its size.
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def rename_stock_keys(state_dict: dict[str, Any], name: str) -> None:
    """Rename, in place, what a stock checkpoint calls the parts of an encoder or decoder called `name`.

    Stock's layer norms become the first norm of their site; 0.12.2's BetterTransformer copies go.
    """
    layer = re.compile(rf"{re.escape(name)}\.layers\.\d+\.(\w+)(\.\w+)?")
    for key in list(state_dict):
        match = layer.fullmatch(key)
        if match and match[1] in STOCK_NORMS:
            head = key[: match.start(1)]
            state_dict[f"{head}{STOCK_NORMS[match[1]]}{match[2]}"] = state_dict.pop(key)
        elif match and match[1] in BETTER_TRANSFORMER_COPIES and match[2] is None:
            del state_dict[key]


class ResidualTransformerEncoder(TransformerEncoderBase):
    """Stock's encoder over ResidualEncoderLayers."""

    def build_encoder_layer(self, cfg):  # type: ignore[no-untyped-def]
        return wrap(ResidualEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def upgrade_state_dict_named(self, state_dict, name):  # type: ignore[no-untyped-def]
        state_dict = super().upgrade_state_dict_named(state_dict, name)
        rename_stock_keys(state_dict, name)
        return state_dict


class ResidualTransformerDecoder(TransformerDecoderBase):
    """Stock's decoder over ResidualDecoderLayers."""

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False):  # type: ignore[no-untyped-def]
        return wrap(ResidualDecoderLayer(cfg, no_encoder_attn), cfg)

    def upgrade_state_dict_named(self, state_dict, name):  # type: ignore[no-untyped-def]
        state_dict = super().upgrade_state_dict_named(state_dict, name)
        rename_stock_keys(state_dict, name)
        return state_dict


@register_model("transformer_resid")
class ResidualTransformerModel(TransformerModel):
    """fairseq's Transformer with a choice of residual structure: --arch transformer_resid --residual NAME."""

    @classmethod
    def hub_models(cls) -> dict[str, Any]:
        """Return the pretrained models of this architecture: there are none, and stock's are not ours."""
        return {}

    @classmethod
    def add_args(cls, parser) -> None:  # type: ignore[no-untyped-def]
        """Add stock's Transformer flags, --residual, and the flag of every option of any residual structure."""
        gen_parser_from_dataclass(parser, TransformerConfig(), delete_default=True, with_prefix="")
        parser.add_argument("--residual", choices=connections.names(), help="residual structure (default: post_ln)")
        parser.add_argument(
            "--residual-backend",
            choices=BACKENDS,
            help="what computes the residual structure: auto, fused kernels wherever they serve; eager, plain PyTorch; "
            "triton, the kernels, or an error if they do not serve in training (default: auto)",
        )
        for name, meanings in connections.all_options().items():
            text = "; ".join(f"{variant}: {spec.help} (default: {spec.default})" for variant, spec in meanings.items())
            option = next(iter(meanings.values()))
            flag = "--" + name.replace("_", "-")
            if option.choices:
                parser.add_argument(flag, choices=option.choices, help=text)
            else:
                parser.add_argument(flag, type=float, metavar="X", help=text)

    @classmethod
    def build_model(cls, args, task):  # type: ignore[no-untyped-def]
        """Return a new model of a parsed command line or of a checkpoint's config.

        As in stock, defaults are written back to `args`, and so is everything that resolve_residual settles.

        Raises: UserError for contradicting options, and for what is no Namespace.
        """
        require_namespace(args)
        base_architecture(args)
        resolve_residual(args)
        for stack in ("encoder", "decoder"):
            heads, width = getattr(args, f"{stack}_attention_heads"), getattr(args, f"{stack}_embed_dim")
            if heads < 1 or width % heads:
                raise UserError(f"--{stack}-attention-heads {heads}: must divide --{stack}-embed-dim {width}")
        try:
            return super().build_model(args, task)
        except ValueError as error:
            # Stock's build_model itself raises if options contradict each other; anything below it is a bug.
            if traceback.extract_tb(error.__traceback__)[-1].name == "build_model":
                raise UserError(str(error)) from None
            raise

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):  # type: ignore[no-untyped-def]
        return ResidualTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):  # type: ignore[no-untyped-def]
        return ResidualTransformerDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):  # type: ignore[no-untyped-def]
        """Load a checkpoint of this model, or of stock `transformer` if the structure has the same parameters.

        Raises: UserError naming what is missing, unexpected or of another shape.
        """
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            if not str(error).startswith("Error(s) in loading state_dict"):
                raise
            raise UserError(f"the checkpoint does not fit --residual {self.cfg.residual}: {error}") from None

    def make_generation_fast_(self, name="", retain_dropout_modules=None, **kwargs):  # type: ignore[no-untyped-def]
        """Prepare for inference as stock does; --retain-dropout-modules takes stock's class names, and ours."""
        names = retain_dropout_modules
        if names is not None:
            # A list from Python, a text from the command line: fairseq asks either with `in`.
            own = [mine for theirs, mine in OWN_CLASSES.items() if theirs in names]
            names = " ".join([names, *own]) if isinstance(names, str) else [*names, *own]
        super().make_generation_fast_(retain_dropout_modules=names, **kwargs)

    def divergence_advice(self) -> str:
        """Return what to do if a training of this model diverges: compat.name_divergence says it."""
        residual = self.cfg.residual
        if getattr(self.cfg, "residual_norm", None) == "none":
            remedy = "--residual-norm layer"
        elif f"{residual}_ln" in connections.names():
            remedy = f"--residual {residual}_ln"
        else:
            return "use a lower --lr"
        return f"--residual {residual} has no norm: use {remedy}, or a lower --lr"
