"""Fold a translation model into the arrays of a plain post-norm, pre-norm or pre-and-post-norm Transformer.

The weights of a structure are folded into the weights around them, so that the arrays compute the same function:

    shortcut weight a    into the gain and bias of the norm before the site (for the first site of a stack: into the
                         embedding, the positions, or the norm of the embedding), and 1/a into the branch's input
    branch weight b      into the rows of out_proj or fc2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import connections
from ..connections import CannotFold, Fold

# The linear maps of a sublayer: INPUTS read x, OTHERS read the encoder's output, and OUTPUT produces the branch output.
INPUTS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "encoder_attn": ("q_proj",), "ffn": ("fc1",)}
OTHERS = {"self_attn": (), "encoder_attn": ("k_proj", "v_proj"), "ffn": ()}
OUTPUT = {"self_attn": "out_proj", "encoder_attn": "out_proj", "ffn": "fc2"}
STOCK_NORMS = {
    "self_attn": "self_attn_layer_norm",
    "encoder_attn": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}
# fairseq's own scalings (NormFormer), and the layer attribute that each of them sets.
SCALINGS = {
    "--scale-attn": "attn_ln",
    "--scale-fc": "ffn_layernorm",
    "--scale-heads": "c_attn",
    "--scale-resids": "w_resid",
}
INSTEAD = "use --to onnx"


@dataclass
class Affine:
    """A linear map, x Wᵀ + bias, or a LayerNorm with eps 1e-5.

    Shapes: weight (out, in) or (C,), bias (out,) or (C,)
    """

    weight: Tensor
    bias: Tensor


@dataclass
class Sublayer:
    """A sublayer and the norms of its site, in the order in which they are applied (two for pre_and_post_norm).

    kind: self_attn, encoder_attn or ffn; linears: q_proj, k_proj, v_proj, out_proj; or fc1, fc2
    """

    kind: str
    linears: dict[str, Affine]
    norms: list[Affine]


@dataclass
class Stack:
    """An encoder or a decoder: x = embedding_norm(scale · embedding[token] + positions[position]), layers, final_norm.

    Shapes: embedding (V, C): row i belongs to the symbol with index i in fairseq's dictionary; positions (P, C): row 0
    is the first position, so fairseq's rows for <s> and <pad> are left out
    """

    graph: str
    heads: int
    activation: str
    embedding: Tensor
    scale: float
    positions: Tensor
    embedding_norm: Affine | None
    layers: list[list[Sublayer]]
    final_norm: Affine | None


@dataclass
class Folded:
    """A whole model. projection: maps the decoder's output to logits, (V, C), without a bias."""

    encoder: Stack
    decoder: Stack
    projection: Tensor


def fold(model: Any) -> Folded:
    """Return a fairseq TransformerModel, ours or fairseq's own, as folded arrays in fp32 on the CPU.

    The model is not changed, and the arrays share no memory with it.
    Raises: CannotFold naming the structure or the setting that cannot be expressed, and the reason.
    """
    check_settings(model)
    return Folded(fold_stack(model.encoder), fold_stack(model.decoder), single(model.decoder.output_projection.weight))


def check_settings(model: Any) -> None:
    """Raise CannotFold for a setting of fairseq that changes the layers in a way that no fold can express."""
    cfg, stacks = model.cfg, (model.encoder, model.decoder)
    wrong = [
        ("--adaptive-input", bool(getattr(cfg, "adaptive_input", False))),
        ("--adaptive-softmax-cutoff", model.decoder.adaptive_softmax is not None),
        ("--no-cross-attention", bool(cfg.no_cross_attention)),
        ("--cross-self-attention", bool(cfg.cross_self_attention)),
        ("--base-layers", bool(getattr(cfg, "base_layers", 0))),
        ("--quant-noise-pq", any(stack.quant_noise is not None for stack in stacks)),
        ("--no-token-positional-embeddings", any(stack.embed_positions is None for stack in stacks)),
        *(
            (flag, any(getattr(layer, name, None) is not None for stack in stacks for layer in stack.layers))
            for flag, name in SCALINGS.items()
        ),
        ("a decoder input wider or narrower than its layers", model.decoder.project_in_dim is not None),
        (
            "a decoder output wider or narrower than its layers",
            getattr(model.decoder, "project_out_dim", None) is not None,
        ),
    ]
    for setting, is_set in wrong:
        if is_set:
            raise CannotFold(f"{setting}: a standard Transformer layer has no such setting; {INSTEAD}")


def single(tensor: Tensor) -> Tensor:
    """Return a copy in fp32 on the CPU."""
    return tensor.detach().to("cpu", torch.float32, copy=True)


def affine(module: Any) -> Affine:
    """Return the arrays of a linear map or of a LayerNorm, of fairseq or one of our final norms."""
    return Affine(single(module.weight), single(module.bias))


def fold_of(layer: Any, kind: str) -> Fold:
    """Return the fold of a site. Layers of stock fairseq have a trivial fold.

    Raises: CannotFold naming the structure and the reason.
    """
    site = getattr(layer, f"{kind}_residual", None)
    if site is None:
        norm = getattr(layer, STOCK_NORMS[kind])
        return Fold(
            "pre_norm" if layer.normalize_before else "post_norm", ((norm.weight.detach(), norm.bias.detach()),)
        )
    residual = str(site.described["residual"])
    made = connections.structure(residual)
    try:
        if made.folds is None:
            raise CannotFold(f"it has no fold for {made.formula} into a post-norm or pre-norm layer")
        return made.folds(site)
    except CannotFold as error:
        raise CannotFold(f"--residual {residual}: {error}; {INSTEAD}") from None


def scaled(tensor: Tensor, by: Tensor) -> Tensor:
    """Return a product that is computed in fp64 and rounded to fp32."""
    return (tensor.double() * by).float()


def fold_stack(stack: Any) -> Stack:
    """Return an encoder or decoder from fairseq as folded arrays.

    Raises: CannotFold naming the structure or the setting that cannot be expressed, and the reason.
    """
    sites = [(number, *sublayer) for number, layer in enumerate(stack.layers) for sublayer in sublayers(layer)]
    end = stack.layer_norm
    if isinstance(end, connections.ResidualStream) and (type(end) is not connections.ResidualStream or end.norm):
        raise CannotFold(f"final norm {type(end.norm or end).__name__}: only a LayerNorm can be folded; {INSTEAD}")
    positions = stack.embed_positions
    table = positions.weight if isinstance(positions, torch.nn.Embedding) else positions.weights
    # fairseq extends a sinusoidal table for longer inputs.
    table = single(table)[positions.padding_idx + 1 :][: stack.max_positions()]
    embedding_norm = stack.layernorm_embedding
    folded = Stack(
        graph=sites[0][2].graph if sites else "post_norm",
        heads=stack.layers[0].self_attn.num_heads if sites else 1,
        activation=str(stack.cfg.activation_fn),
        embedding=single(stack.embed_tokens.weight),
        scale=float(stack.embed_scale),
        positions=table,
        embedding_norm=None if embedding_norm is None else affine(embedding_norm),
        layers=[[] for _ in stack.layers],
        final_norm=None if end is None else affine(end),
    )
    before = folded.embedding_norm  # the norm that produced x, or None if x is the embedding
    for number, sublayer, site in sites:
        shortcut, branch = (
            torch.as_tensor(weight).detach().to("cpu", torch.float64).expand(folded.embedding.size(1))
            for weight in (site.shortcut, site.branch)
        )
        if not bool((shortcut != 0).all() and shortcut.isfinite().all()):
            raise CannotFold(f"shortcut weight 0 or not finite: no weight can be divided by it; {INSTEAD}")
        for name in INPUTS[sublayer.kind]:
            linear = sublayer.linears[name]
            linear.weight = scaled(linear.weight, 1 / shortcut)
        output = sublayer.linears[OUTPUT[sublayer.kind]]
        output.weight, output.bias = scaled(output.weight, branch[:, None]), scaled(output.bias, branch)
        if folded.graph == "post_norm":
            if before is None:
                folded.embedding, folded.positions = (
                    scaled(folded.embedding, shortcut),
                    scaled(folded.positions, shortcut),
                )
            else:
                before.weight, before.bias = scaled(before.weight, shortcut), scaled(before.bias, shortcut)
            before = sublayer.norms[0]
        folded.layers[number].append(sublayer)
    return folded


def sublayers(layer: Any) -> Iterator[tuple[Sublayer, Fold]]:
    """Yield the sublayers of a layer, with unchanged weights, and the fold to apply to each."""
    for kind in INPUTS:
        if kind == "encoder_attn" and getattr(layer, kind, None) is None:
            continue
        site = fold_of(layer, kind)
        module = layer if kind == "ffn" else getattr(layer, kind)
        names = (*INPUTS[kind], *OTHERS[kind], OUTPUT[kind])
        norms = [Affine(single(gain), single(bias)) for gain, bias in site.norms]
        yield Sublayer(kind, {name: affine(getattr(module, name)) for name in names}, norms), site
