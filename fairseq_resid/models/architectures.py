"""Named architectures: every size of every family, with sources."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.transformer.transformer_legacy import base_architecture

from ..fairseq_patches import UserError
from . import captioning  # noqa: F401  (registers the model)
from .translation import resolve_residual

# Vaswani 2017, table 3, rows "base" and "big". The SAS paper (section 4.1) and the rSkip paper (section 4.1.2) also use
# these sizes for IWSLT'15 EN-VI, instead of fairseq's smaller preset for IWSLT.
BASE = {"embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8, "layers": 6, "dropout": 0.1}
BIG = {"embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16, "layers": 6, "dropout": 0.3}

SIZES: dict[str, dict[str, Any]] = {
    "": BASE,
    "_big": BIG,
    "_iwslt_en_vi": BASE,
    "_iwslt_en_vi_big": BIG,
    "_wmt_en_de": BASE,
    "_wmt_en_de_big": BIG,
    "_wmt_en_fr": BASE,
    "_wmt_en_fr_big": {**BIG, "dropout": 0.1},  # Vaswani 2017, section 6.1: 0.1 instead of 0.3 for EN-FR
    # For tests and experiments: this size trains in seconds on a CPU.
    "_tiny": {"embed_dim": 64, "ffn_embed_dim": 128, "attention_heads": 4, "layers": 2, "dropout": 0.1},
}

# The SAS paper does not give the size of its captioning model; we use Base.
MODELS = {"transformer_resid": SIZES, "captioning_resid": {name: SIZES[name] for name in ("", "_tiny")}}

# The model of each family, and its residual structure; None: the user's --residual.
FAMILIES = {
    f"{model.removesuffix('resid')}{structure or 'resid'}": (model, structure)
    for model in MODELS
    for structure in (None, "sas", "rskip_ln")
}


def preset(arch: str, model: str, residual: str | None, size: dict[str, Any]) -> Callable[[argparse.Namespace], None]:
    """Return the function that sets an architecture's values in a namespace, except those set by a flag."""

    def fill(args: argparse.Namespace) -> None:
        if residual is not None:
            given = getattr(args, "residual", None)
            if given not in (None, residual):
                raise UserError(
                    f"--residual {given}: --arch {arch} always uses {residual}; use --arch {model} to choose another"
                )
            args.residual = residual
        for name, value in size.items():
            # As in fairseq, the decoder takes its widths from the encoder (base_architecture).
            stacks = {"dropout": [""], "embed_dim": ["encoder_"], "ffn_embed_dim": ["encoder_"]}
            for stack in stacks.get(name, ["encoder_", "decoder_"]):
                if not hasattr(args, stack + name):
                    setattr(args, stack + name, value)
        base_architecture(args)
        # Check the flags before the data is loaded. The check uses a copy, because fairseq calls this function again
        # when it builds the model, after fairseq.options.get_args has set the values that its caller passed.
        resolve_residual(copy.copy(args))

    return fill


for family, (model, structure) in FAMILIES.items():
    for suffix, numbers in MODELS[model].items():
        register_model_architecture(model, family + suffix)(preset(family + suffix, model, structure, numbers))
