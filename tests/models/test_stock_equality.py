"""The models compared with stock `transformer`: checkpoints, logits, beam search, single layers."""

from __future__ import annotations

import pytest
import torch

from fairseq_resid.fairseq_patches import UserError
from support.models import (
    COPIES,
    COPY,
    DROPPING,
    PRE,
    adopted,
    as_stock,
    build,
    copied,
    logits,
    loss_and_gradients,
    sentences,
    shaken,
    stock,
    translate,
)
from support.structures import each_variant

# --- stock equality ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eval", "train", "dropout"])
@as_stock
def test_model_equals_stock_bitwise(theirs, ours, mode):
    dropout = DROPPING if mode == "dropout" else {"dropout": 0.0}
    model = stock(**theirs, **dropout)
    copy = adopted(model, {**ours, **dropout})
    for each in (model, copy):
        each.train(mode != "eval")
    torch.manual_seed(4)
    expected = logits(model)
    torch.manual_seed(4)
    assert torch.equal(logits(copy), expected)
    (loss, gradients), (our_loss, our_gradients) = loss_and_gradients(model), loss_and_gradients(copy)
    assert torch.equal(our_loss, loss)
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.equal(our_gradients[name], gradient), name


@as_stock
def test_beam_search_equals_that_of_stock(theirs, ours):
    model = stock(**theirs)
    rows = sentences(3, (2, 4, 6, 6))
    for expected, found in zip(translate(model, rows), translate(adopted(model, ours), rows), strict=True):
        assert len(expected) == len(found) == 4
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a["tokens"], b["tokens"])
            assert torch.equal(a["score"], b["score"])
            assert torch.equal(a["positional_scores"], b["positional_scores"])


@pytest.mark.parametrize(
    "given",
    [
        {"share_all_embeddings": True},
        {"share_decoder_input_output_embed": True},
        {"layernorm_embedding": True},
        {"cross_self_attention": True},
        {"cross_self_attention": True, "no_cross_attention": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True},
        {"adaptive_softmax_cutoff": "20,40"},
        {"activation_fn": "gelu"},
        {"encoder_ffn_embed_dim": 96, "decoder_embed_dim": 48, "decoder_output_dim": 48, "decoder_input_dim": 48},
    ],
    ids=str,
)
def test_models_with_other_options_equal_stock(given):
    model = stock(**given)
    assert torch.equal(logits(adopted(model, given)), logits(model))


@pytest.mark.parametrize("final_norm", [True, False])
def test_no_decoder_final_norm_equals_stock(final_norm):
    given = {"no_decoder_final_norm": not final_norm}
    model = stock(**PRE, **given)
    copy = adopted(model, {"residual": "pre_ln", **given})
    assert copy.encoder.layer_norm is not None
    assert (copy.decoder.layer_norm is not None) == final_norm
    assert torch.equal(logits(copy), logits(model))


def as_older_fairseq_writes(model):
    """Return the state of a stock model with the keys that only 0.12.2 stores in a checkpoint."""
    state = copied(model)
    for layer in range(2):
        state.update({f"encoder.layers.{layer}.{key}": torch.zeros(shape) for key, shape in COPIES.items()})
    for stack in ("encoder", "decoder"):
        state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    return state


def as_newer_fairseq_writes(model):
    state = copied(model)
    return {key: value for key, value in state.items() if not COPY.fullmatch(key) and "_float_tensor" not in key}


@pytest.mark.parametrize("written", [as_older_fairseq_writes, as_newer_fairseq_writes])
@as_stock
def test_stock_checkpoints_of_either_fairseq_load(theirs, ours, written):
    model, copy = stock(**theirs), build(**ours)
    state = written(model)
    assert sum(bool(COPY.fullmatch(key)) for key in state) == (16 if written is as_older_fairseq_writes else 0)
    copy.load_state_dict(state)
    assert torch.equal(logits(copy.eval()), logits(model))


@each_variant
def test_our_checkpoints_load(name, options):
    model, other = build(residual=name, **options), shaken(build(residual=name, **options), seed=7)
    assert not torch.equal(logits(other), logits(model))
    other.load_state_dict(copied(model))
    assert torch.equal(logits(other.eval()), logits(model))


SITE = "encoder.layers.0.self_attn_residual"


@pytest.mark.parametrize(
    ("theirs", "ours", "cause"),
    [
        ({}, {"residual": "sas"}, f"the checkpoint lacks {SITE}.gate.hidden_weight (40 such tensors)"),
        (PRE, {"residual": "post_ln"}, "the model lacks encoder.layer_norm.weight (4 such tensors)"),
    ],
    ids=str,
)
def test_mismatched_stock_checkpoint_is_refused(theirs, ours, cause):
    with pytest.raises(UserError) as error:
        build(**ours).load_state_dict(copied(stock(**theirs)))
    assert str(error.value) == f"the checkpoint does not fit --residual {ours['residual']}: {cause}"


# --- layers compared with fairseq's ---------------------------------------------------------------------------------

GENERATOR = torch.Generator().manual_seed(9)
X, ENCODED = torch.randn(4, 3, 64, generator=GENERATOR), torch.randn(5, 3, 64, generator=GENERATOR)
SOURCE_PADDING = torch.zeros(3, 5, dtype=torch.bool)
SOURCE_PADDING[0, :2] = True


def same(found, expected):
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found is expected is None or torch.equal(found, expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("given", [{}, {"need_attn": True}, {"need_head_weights": True}], ids=str)
@as_stock
def test_decoder_layer_attention_equals_that_of_stock(theirs, ours, given, fast, training):
    model = stock(**theirs, dropout=0.0)
    results = []
    for each in (model, adopted(model, {**ours, "dropout": 0.0})):
        layer = each.decoder.layers[1].train(training)
        if fast:
            layer.make_generation_fast_(need_attn=False)
        results.append(layer(X, ENCODED, SOURCE_PADDING, **given))
    same(results[1], results[0])
    assert (results[0][1] is None) == (not given and (fast or training))


@pytest.mark.parametrize("return_fc", [False, True])
@pytest.mark.parametrize("mask", [None, torch.ones(4, 4).triu(1)], ids=["all", "causal"])
@as_stock
def test_encoder_layer_equals_that_of_stock(theirs, ours, mask, return_fc):
    model = stock(**theirs)
    padding = SOURCE_PADDING[:, 1:]
    results = []
    for each in (model, adopted(model, ours)):
        layer = each.encoder.layers[1]
        layer.return_fc = return_fc
        results.append(layer(X, padding, mask))
    same(results[1], results[0])
    assert isinstance(results[1], tuple) == return_fc
