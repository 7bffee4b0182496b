"""Folding: a plain post-norm or pre-norm Transformer with the folded arrays computes the model's log probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.connections import CannotFold, Fold
from fairseq_resid.export.folding import fold
from support.engines import FOLDING, SETTINGS
from support.models import DICT, EOS, PAD, PRE, build, left_padded, sentences, shaken, stock
from support.plain_transformer import log_probabilities

pytestmark = pytest.mark.once


def padded_batch(words: int = len(DICT)) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Return sources with </s>, decoder inputs, and both as fairseq's inputs in one padded batch."""
    eos = torch.tensor([EOS])
    sources = [torch.cat([row, eos]) for row in sentences(1, (3, 9, 5), words)]
    inputs = [torch.cat([eos, row]) for row in sentences(2, (7, 2, 4))]
    return sources, inputs, torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True, padding_value=PAD)


def worst_difference(model: Any, words: int = len(DICT)) -> float:
    """Return the largest difference in log p between a model on a padded batch and its folded arrays."""
    sources, inputs, previous = padded_batch(words)
    lengths = torch.tensor([len(row) for row in sources])
    with torch.no_grad():
        expected = model(left_padded(sources), lengths, previous)[0].log_softmax(-1)
        folded = fold(model)
        found = [log_probabilities(folded, *pair) for pair in zip(sources, inputs, strict=True)]
    return max((mine - theirs[: len(mine)]).abs().max().item() for mine, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", FOLDING)
def test_folded_arrays_compute_the_log_probabilities_of_structure(name: str) -> None:
    options, graph = FOLDING[name]
    model = shaken(build(residual=name, **options), 7, 0.1)
    folded = fold(model)
    assert folded.encoder.graph == folded.decoder.graph == graph
    assert worst_difference(model) < 2e-5


@pytest.mark.parametrize("name", SETTINGS)
def test_folding_supports_fairseq_setting(name: str) -> None:
    settings, task = SETTINGS[name]
    model = shaken(build(task=task, **settings), 7, 0.1)
    assert worst_difference(model, len(task.source_dictionary)) < 2e-5


@pytest.mark.parametrize("settings", [{}, PRE, {**PRE, "encoder_layers": 1, "layernorm_embedding": True}], ids=str)
def test_stock_transformers_can_be_folded(settings: dict[str, Any]) -> None:
    assert worst_difference(stock(**settings)) < 2e-5


def test_folding_leaves_the_model_unchanged() -> None:
    model = build(residual="wskip_ln", share_all_embeddings=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folded = fold(model)
    folded.projection.zero_()
    folded.encoder.embedding.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.structures
@pytest.mark.parametrize("name", connections.own_names())
def test_structure_folds_or_is_refused_with_one_line(name: str) -> None:
    model = build(residual=name)
    if name in FOLDING and name != "rskip_ln":
        fold(model)
        return
    with pytest.raises(CannotFold) as refused:
        fold(model)
    message = str(refused.value)
    assert message.startswith(f"--residual {name}: ") and message.endswith("; use --to onnx") and "\n" not in message


def test_every_structure_that_declares_a_fold_is_tested() -> None:
    declared = {name for name in connections.own_names() if connections.structure(name).folds is not None}
    assert declared == set(FOLDING) - {"peri_ln"}


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"no_token_positional_embeddings": True}, "--no-token-positional-embeddings"),
        (
            {"decoder_output_dim": 32, "share_decoder_input_output_embed": False},
            "a decoder output wider or narrower than its layers",
        ),
        ({"cross_self_attention": True, "no_cross_attention": True}, "--no-cross-attention"),
        ({"quant_noise_pq": 0.1}, "--quant-noise-pq"),
        ({"adaptive_softmax_cutoff": "10,20"}, "--adaptive-softmax-cutoff"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_no_engine_supports_are_refused(settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(CannotFold, match=rf"^{flag}: [^\n]*; use --to onnx$"):
        fold(build(residual="post_ln", **settings))


@pytest.mark.parametrize("flag", ["scale_attn", "scale_fc", "scale_heads", "scale_resids"])
def test_scalings_of_stock_layers_are_refused(flag: str) -> None:
    with pytest.raises(CannotFold, match=f"^--{flag.replace('_', '-')}: "):
        fold(stock(**{flag: True, **PRE}))


def test_shortcut_weight_zero_is_refused() -> None:
    model = build(residual="wskip_ln")
    with torch.no_grad():
        model.encoder.layers[1].ffn_residual.skip_weight[3] = 0
    with pytest.raises(CannotFold, match="shortcut weight 0"):
        fold(model)


def test_fold_checks_its_graph() -> None:
    pair = (torch.ones(2), torch.zeros(2))
    with pytest.raises(ValueError, match="graph pre_and_post_norm with 1 norms: must have 2"):
        Fold("pre_and_post_norm", (pair,))
    with pytest.raises(ValueError, match="graph pre_norm with a shortcut weight: only post_norm"):
        Fold("pre_norm", (pair,), shortcut=2.0)
