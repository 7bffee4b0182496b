"""Small translation models that need no data, and helpers for them."""

from __future__ import annotations

import argparse
import re

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator

import fairseq_resid.models  # noqa: F401  (registers the architectures)
from fairseq_resid import connections


def dictionary(words=50):
    made = Dictionary()
    for index in range(words):
        made.add_symbol(f"w{index}")
    return made


DICT = dictionary()
PAD, EOS = DICT.pad(), DICT.eos()
TASK = argparse.Namespace(source_dictionary=DICT, target_dictionary=DICT)
TINY = {
    "encoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 128,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
# 0.12.2's copies of encoder weights, with their shapes in a layer of 64 channels and 128 hidden units.
COPIES = {
    "in_proj_weight": (192, 64),
    "in_proj_bias": (192,),
    "out_proj_weight": (64, 64),
    "out_proj_bias": (64,),
    "fc1_weight": (128, 64),
    "fc1_bias": (128,),
    "fc2_weight": (64, 128),
    "fc2_bias": (64,),
}
COPY = re.compile(rf"encoder\.layers\.\d+\.({'|'.join(COPIES)})")


def settings(arch, **given):
    args = argparse.Namespace(arch=arch, **given)
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def shaken(model, seed=0, noise=0.03):
    """Add noise to every parameter, so that no two norms or biases are equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def build(arch="transformer_resid_tiny", task=TASK, **given):
    torch.manual_seed(0)
    return shaken(ARCH_MODEL_REGISTRY[arch].build_model(settings(arch, **given), task))


def stock(**given):
    torch.manual_seed(0)
    return shaken(TransformerModel.build_model(settings("transformer", **{**TINY, **given}), TASK))


def copied(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def adopted(model, given):
    """Return our model with the weights of a stock model."""
    ours = build(**given)
    ours.load_state_dict(copied(model))
    return ours.eval()


def sentences(seed=0, lengths=(3, 5, 7), bound=None):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, bound or len(DICT), (n,), generator=generator) for n in lengths]


def left_padded(rows):
    width = max(map(len, rows))
    return torch.stack([torch.cat([row.new_full((width - len(row),), PAD), row]) for row in rows])


def batch(lengths=(3, 5, 7)):
    source = left_padded(sentences(1, lengths))
    target = torch.stack(sentences(2, [6] * len(lengths)))
    start = torch.full((len(target), 1), EOS)
    return source, torch.tensor(lengths), torch.cat([start, target[:, :-1]], dim=1), target


def sample():
    source, lengths, previous, target = batch()
    net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
    return {"net_input": net_input, "target": target, "ntokens": target.numel(), "nsentences": len(target)}


def logits(model, **given):
    return model(*batch()[:3], **given)[0]


def translate(model, rows, beam=4):
    generator = SequenceGenerator([model], DICT, beam_size=beam, max_len_a=0, max_len_b=9, len_penalty=0.6)
    net_input = {"src_tokens": left_padded(rows), "src_lengths": torch.tensor([len(row) for row in rows])}
    return generator.generate([model], {"net_input": net_input})


def incremental(model, source, lengths, previous):
    """Return the logits with teacher forcing, computed one step at a time."""
    encoded, state = model.encoder(source, lengths), {}
    steps = [
        model.decoder(previous[:, : step + 1], encoder_out=encoded, incremental_state=state)[0]
        for step in range(previous.size(1))
    ]
    return torch.cat(steps, dim=1)


def sites(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, connections.ResidualConnection)}


def close(found, expected, tolerance=1e-5):
    """Assert equality up to `tolerance` of the largest value, because values grow with depth if there is no norm."""
    assert found.shape == expected.shape
    worst = ((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item()
    assert worst < tolerance, worst


def parameters(model):
    return sum(p.numel() for name, p in model.named_parameters() if not COPY.fullmatch(name))


def loss_and_gradients(model):
    torch.manual_seed(5)
    model.zero_grad()
    loss = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(model, sample())[0]
    loss.backward()
    renamed = {"self_attn_residual.norm": "self_attn_layer_norm", "ffn_residual.norm": "final_layer_norm"}
    renamed["encoder_attn_residual.norm"] = "encoder_attn_layer_norm"
    found = {}
    for name, parameter in model.named_parameters():
        for new, old in renamed.items():
            name = name.replace(new, old)
        if not COPY.fullmatch(name):
            found[name] = parameter.grad
    return loss, found


STOCKS = {
    "post_ln": ({}, {"residual": "post_ln"}),
    "rskip_ln λ=1": ({}, {"residual": "rskip_ln", "skip_lambda": 1}),
    "pre_ln": (PRE, {"residual": "pre_ln"}),
}
as_stock = pytest.mark.parametrize(("theirs", "ours"), list(STOCKS.values()), ids=list(STOCKS))
DROPPING = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.15}
