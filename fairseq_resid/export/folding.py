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
class Linear:
    """y = x Wᵀ + bias. Shapes: weight (out, in), bias (out,)."""

    weight: Tensor
    bias: Tensor | None


@dataclass
class Norm:
    """LayerNorm over C channels, eps 1e-5. Shapes: (C,)."""

    gain: Tensor
    bias: Tensor


@dataclass
class Sublayer:
    """A sublayer and the norms of its site, in the order in which they are applied (two for pre_and_post_norm).

    kind: self_attn, encoder_attn or ffn; linears: q_proj, k_proj, v_proj, out_proj; or fc1, fc2
    """

    kind: str
    linears: dict[str, Linear]
    norms: list[Norm]


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
    embedding_norm: Norm | None
    layers: list[list[Sublayer]]
    final_norm: Norm | None
    learned_positions: bool = False


@dataclass
class Folded:
    """A whole model. projection: maps the decoder's output to logits, (V, C)."""

    encoder: Stack
    decoder: Stack
    projection: Linear


def fold(model: Any) -> Folded:
    """Return a fairseq TransformerModel, ours or fairseq's own, as folded arrays in fp32 on the CPU.

    The model is not changed, and the arrays share no memory with it.
    Raises: CannotFold naming the structure or the setting that cannot be expressed, and the reason.
    """
    check_settings(model)
    encoder, decoder = (fold_stack(stack) for stack in (model.encoder, model.decoder))
    projection = model.decoder.output_projection
    return Folded(encoder, decoder, Linear(single(projection.weight), maybe(projection.bias)))


def structure_of(model: Any) -> str | None:
    """Return the --residual name of one of our models; None for a stock fairseq model."""
    site = next(iter(connections.sites(model).values()), None)
    return None if site is None else str(site.described["residual"])


def fold_site(site: connections.ResidualConnection) -> Fold:
    """Return the fold of a site.

    Raises: CannotFold naming the structure and the reason.
    """
    residual = str(site.described["residual"])
    made = connections.structure(residual)
    if made.folds is None:
        formula = f"it has no fold for {made.formula} into a post-norm or pre-norm layer"
        raise CannotFold(f"--residual {residual}: {formula}; {INSTEAD}")
    try:
        return made.folds(site)
    except CannotFold as error:
        raise CannotFold(f"--residual {residual}: {error}; {INSTEAD}") from None


def check_settings(model: Any) -> None:
    """Raise CannotFold for a setting of fairseq that changes the layers in a way that no fold can express."""
    cfg, stacks = model.cfg, (model.encoder, model.decoder)
    wrong = [
        ("--adaptive-input", bool(getattr(cfg, "adaptive_input", False))),
        ("--adaptive-softmax-cutoff", model.decoder.adaptive_softmax is not None),
        ("--character-embeddings", bool(getattr(cfg, "char_inputs", False))),
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


def maybe(tensor: Tensor | None) -> Tensor | None:
    """Return a copy in fp32 on the CPU, or None."""
    return None if tensor is None else single(tensor)


def norm_of(module: Any) -> Norm | None:
    """Return the arrays of a LayerNorm of fairseq or of one of our final norms, or None without a norm."""
    return None if module is None else Norm(single(module.weight), single(module.bias))


def sublayers(stack: Any) -> Iterator[tuple[int, str, Any, Any]]:
    """For each sublayer, yield the layer number, the kind, the module with the linear maps, and the layer."""
    for number, layer in enumerate(stack.layers):
        yield number, "self_attn", layer.self_attn, layer
        if getattr(layer, "encoder_attn", None) is not None:
            yield number, "encoder_attn", layer.encoder_attn, layer
        yield number, "ffn", layer, layer


def fold_of(stack: Any, kind: str, layer: Any) -> Fold:
    """Return the fold of a site. Layers of stock fairseq have a trivial fold.

    Raises: CannotFold naming the structure and the reason.
    """
    if hasattr(layer, f"{kind}_residual"):
        return fold_site(getattr(layer, f"{kind}_residual"))
    norm = getattr(layer, STOCK_NORMS[kind])
    return Fold("pre_norm" if layer.normalize_before else "post_norm", ((norm.weight.detach(), norm.bias.detach()),))


def check_end(stack: Any) -> None:
    """Raise CannotFold unless a stack ends with a LayerNorm or without a norm."""
    end = stack.layer_norm
    if isinstance(end, connections.ResidualStream) and (type(end) is not connections.ResidualStream or end.norm):
        raise CannotFold(f"final norm {type(end.norm or end).__name__}: only a LayerNorm can be folded; {INSTEAD}")


def double(value: Tensor | float, width: int) -> Tensor:
    """Return a weight of a fold as a vector (C,) in fp64 on the CPU."""
    found = torch.as_tensor(value).detach().to("cpu", torch.float64)
    return found.expand(width)


def scaled(tensor: Tensor, by: Tensor) -> Tensor:
    """Return a product that is computed in fp64 and rounded to fp32."""
    return (tensor.double() * by).float()


def fold_stack(stack: Any) -> Stack:
    """Return an encoder or decoder from fairseq as folded arrays.

    Raises: CannotFold naming the structure or the setting that cannot be expressed, and the reason.
    """
    made = layers_of(stack)
    check_end(stack)
    positions = stack.embed_positions
    learned = isinstance(positions, torch.nn.Embedding)
    table = single(positions.weight if learned else positions.weights)[positions.padding_idx + 1 :]
    table = table[: stack.max_positions()]  # fairseq extends a sinusoidal table for longer inputs
    layer = stack.layers[0] if len(stack.layers) else None
    folded = Stack(
        graph=made[0][2].graph if made else "post_norm",
        heads=layer.self_attn.num_heads if layer is not None else 1,
        activation=str(stack.cfg.activation_fn),
        embedding=single(stack.embed_tokens.weight),
        scale=float(stack.embed_scale),
        positions=table,
        embedding_norm=norm_of(stack.layernorm_embedding),
        layers=[[] for _ in stack.layers],
        final_norm=norm_of(stack.layer_norm),
        learned_positions=learned,
    )
    before: Norm | None = None  # the norm that produced x
    for number, sublayer, site in made:
        width = folded.embedding.size(1)
        shortcut, branch = double(site.shortcut, width), double(site.branch, width)
        if not bool((shortcut != 0).all() and shortcut.isfinite().all()):
            raise CannotFold(f"shortcut weight 0 or not finite: no weight can be divided by it; {INSTEAD}")
        for name in INPUTS[sublayer.kind]:
            linear = sublayer.linears[name]
            linear.weight = scaled(linear.weight, 1 / shortcut)
        output = sublayer.linears[OUTPUT[sublayer.kind]]
        output.weight = scaled(output.weight, branch[:, None])
        output.bias = None if output.bias is None else scaled(output.bias, branch)
        if folded.graph == "post_norm":
            scale_input(folded, before, shortcut)
            before = sublayer.norms[0]
        folded.layers[number].append(sublayer)
    return folded


def scale_input(stack: Stack, before: Norm | None, by: Tensor) -> None:
    """Scale the channels of x: in the norm before a site, or in the input of the stack."""
    before = before or stack.embedding_norm
    if before is not None:
        before.gain, before.bias = scaled(before.gain, by), scaled(before.bias, by)
    else:
        stack.embedding, stack.positions = scaled(stack.embedding, by), scaled(stack.positions, by)


def layers_of(stack: Any) -> list[tuple[int, Sublayer, Fold]]:
    """Return the sublayers of a stack and the fold to apply to each."""
    made = []
    for number, kind, module, layer in sublayers(stack):
        site = fold_of(stack, kind, layer)
        names = (*INPUTS[kind], *OTHERS[kind], OUTPUT[kind])
        linears = {
            name: Linear(single(linear.weight), maybe(linear.bias))
            for name, linear in ((name, getattr(module, name)) for name in names)
        }
        norms = [Norm(single(gain), single(bias)) for gain, bias in site.norms]
        made.append((number, Sublayer(kind, linears, norms), site))
    return made
