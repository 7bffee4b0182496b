"""Decoding, padding, modes and features of fairseq with every structure."""

from __future__ import annotations

import argparse

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_resid import connections
from fairseq_resid.fairseq_patches import UserError
from fairseq_resid.models.layers import ResidualDecoderLayer, ResidualEncoderLayer
from support import structures
from support.models import (
    COPY,
    DICT,
    DROPPING,
    PAD,
    TASK,
    adopted,
    as_stock,
    batch,
    build,
    close,
    copied,
    incremental,
    logits,
    loss_and_gradients,
    parameters,
    sample,
    sentences,
    settings,
    sites,
    stock,
    translate,
)
from support.pages import example
from support.structures import each_variant

both = pytest.mark.parametrize("arch", ["transformer_sas_tiny", "transformer_rskip_ln_tiny"])


# --- decoding, padding, modes --------------------------------------------------------------------------------------


@each_variant
def test_incremental_decoding_equals_the_full_forward(name, options):
    model = build(residual=name, **options)
    source, lengths, previous, _ = batch()
    full = model(source, lengths, previous)[0]
    close(incremental(model, source, lengths, previous), full)


@each_variant
def test_padding_and_batch_order_change_nothing(name, options):
    model = build(residual=name, **options)
    source, lengths, previous, _ = batch()
    previous = previous.clone()
    previous[1, 4:] = PAD  # a shorter target
    together = model(source, lengths, previous)[0]
    order = torch.tensor([2, 0, 1])
    reordered = model(source[order], lengths[order], previous[order])[0]
    for row, length in enumerate(lengths.tolist()):
        kept = 4 if row == 1 else 6
        single = model(source[row : row + 1, -length:], lengths[row : row + 1], previous[row : row + 1, :kept])[0][0]
        close(together[row, :kept], single)
        close(reordered[order.tolist().index(row), :kept], single)


@both
def test_beam_search_does_not_depend_on_the_batch(arch):
    model, rows = build(arch), sentences(3, (2, 4, 7))
    for row, found in zip(rows, translate(model, rows), strict=True):
        alone = translate(model, [row])[0]
        for a, b in zip(alone, found, strict=True):
            assert torch.equal(a["tokens"], b["tokens"])
            close(a["score"], b["score"])


@each_variant
def test_train_equals_eval_without_dropout(name, options):
    model = build(residual=name, **options, dropout=0.0)
    evaluated = logits(model)
    trained = logits(model.train())
    if structures.spec(name).is_random:
        assert not torch.allclose(trained, evaluated, atol=1e-3)
    else:
        close(trained, evaluated)


@each_variant
def test_every_parameter_learns(name, options):
    model = build(residual=name, **options).train()
    LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(model, sample())[0].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("k_proj.bias"):  # softmax ignores the common part of all keys
            assert parameter.grad.abs().sum() > 0, name


@each_variant
def test_our_layers_run_in_eval_mode_after_loading(name, options, monkeypatch):
    """Without our patches, fairseq 0.12.2 would skip the layer's forward method here."""
    model = build(residual=name, **options)
    model.load_state_dict(copied(model))
    model.eval()
    calls = []
    for kind in (ResidualEncoderLayer, ResidualDecoderLayer):
        forward = kind.forward

        def counted(self, *args, _forward=forward, **kwargs):
            calls.append(type(self))
            return _forward(self, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", counted)
    seen = []
    for name, site in sites(model).items():
        site.register_forward_hook(lambda *_, name=name: seen.append(name))
    with torch.no_grad():
        logits(model)
    assert calls == [ResidualEncoderLayer] * 2 + [ResidualDecoderLayer] * 2
    assert sorted(seen) == sorted(sites(model))
    assert not [name for name, _ in model.named_parameters() if COPY.fullmatch(name)]
    assert not [name for name in model.state_dict() if COPY.fullmatch(name)]


@pytest.mark.parametrize("residual", ["post_ln", "sas", "hyper", "rskip_ln"])
def test_int8_example_on_the_export_page_works(residual):
    model = build(residual=residual, encoder_layers=1, decoder_layers=2)
    expected = torch.log_softmax(logits(model), -1)
    exec(example("export.md", "quantize_dynamic"), {"model": model})
    quantised = {name for name, module in model.named_modules() if isinstance(module, nn.quantized.dynamic.Linear)}
    assert len(quantised) == 2 * 3 + 1
    found = torch.log_softmax(logits(model), -1)
    error = (found - expected).norm() / (expected - expected.mean()).norm()
    assert 0 < error < 0.05
    assert [len(hypotheses) for hypotheses in translate(model, sentences())] == [4, 4, 4]


@pytest.mark.parametrize("tied", [True, False])
def test_int8_output_projection_keeps_the_embedding(tied):
    model = build(share_decoder_input_output_embed=tied)
    embedding = model.decoder.embed_tokens.weight.clone()
    assert (model.decoder.output_projection.weight is model.decoder.embed_tokens.weight) == tied
    exec(example("export.md", "quantize_dynamic"), {"model": model})
    assert model.decoder.output_projection.weight().dtype == torch.qint8
    assert torch.equal(model.decoder.embed_tokens.weight, embedding)


# --- fairseq's features --------------------------------------------------------------------------------------------


def needs_every_layer(name, options):
    return connections.needs_every_layer(name, connections.resolve(name, options))


CASES = structures.variants().values()
whole = structures.over("name options", [case for case in CASES if needs_every_layer(*case)])
droppable = structures.over("name options", [case for case in CASES if not needs_every_layer(*case)])


@pytest.mark.parametrize("flag", ["encoder_layerdrop", "decoder_layerdrop"])
@whole
def test_structure_that_needs_every_layer_refuses_layer_drop(name, options, flag):
    given = {"residual": name, **options}
    with pytest.raises(UserError, match=rf"--{flag.replace('_', '-')} 0.5 with --residual {name}"):
        settings("transformer_resid_tiny", **given, **{flag: 0.5})
    keep = flag.replace("layerdrop", "layers_to_keep")
    with pytest.raises(UserError, match=rf"--{keep.replace('_', '-')} 1 with --residual {name}"):
        settings("transformer_resid_tiny", **given, **{keep: "1"})


@droppable
def test_layerdrop_skips_layers_only_in_training(name, options):
    given = {"residual": name, **options}
    drop = {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
    plain, dropping = build(**given, dropout=0.0), build(**given, dropout=0.0, **drop)
    assert torch.equal(logits(dropping), logits(plain))
    calls = []
    for site in sites(dropping).values():
        site.register_forward_hook(lambda *_: calls.append(1))
    dropping.train()
    counts = set()
    for _ in range(30):
        calls.clear()
        logits(dropping)
        counts.add(len(calls))
    assert min(counts) < 5 < max(counts) <= 10
    assert len(counts) > 3


KEEP = {"encoder_layers_to_keep": "1,3", "decoder_layers_to_keep": "0,2"}
DEEP = {"encoder_layers": 4, "decoder_layers": 3}


def pruned(state, build_one, arch, **given):
    model = build_one(**given, **DEEP, **KEEP)
    model.load_state_dict(state, model_cfg=argparse.Namespace(arch=arch, **KEEP))
    return model.eval()


@droppable
def test_layers_to_keep_prunes_both_stacks(name, options):
    given = {"residual": name, **options}
    full = build(**given, **DEEP)
    model = pruned(copied(full), lambda **more: build(**given, **more), "transformer_resid_tiny")
    for stack, kept in (("encoder", (1, 3)), ("decoder", (0, 2))):
        layers, originals = getattr(model, stack).layers, getattr(full, stack).layers
        assert len(layers) == 2
        for layer, index in zip(layers, kept, strict=True):
            expected = originals[index].state_dict()
            assert layer.state_dict().keys() == expected.keys()
            assert all(torch.equal(value, expected[key]) for key, value in layer.state_dict().items())
    assert logits(model).isfinite().all()


@as_stock
def test_pruned_stock_checkpoint_equals_stock(theirs, ours):
    full = stock(**theirs, **DEEP)
    expected = pruned(copied(full), stock, "transformer", **theirs)
    model = pruned(copied(full), build, "transformer_resid_tiny", **ours)
    assert torch.equal(logits(model), logits(expected))


@each_variant
def test_activation_checkpointing_keeps_loss_and_gradients(name, options):
    plain, checkpointing = (
        build(residual=name, **options, checkpoint_activations=on, **DROPPING).train() for on in (False, True)
    )
    assert checkpointing.state_dict().keys() == plain.state_dict().keys()
    for layer in (*checkpointing.encoder.layers, *checkpointing.decoder.layers):
        assert hasattr(layer, "precheckpoint_forward")
    (loss, gradients), (same_loss, same) = loss_and_gradients(plain), loss_and_gradients(checkpointing)
    assert torch.equal(loss, same_loss)
    for name, gradient in gradients.items():
        close(same[name], gradient, 1e-4)


@both
def test_adaptive_softmax_gives_probabilities_and_gradients(arch):
    model = build(arch, adaptive_softmax_cutoff="20,40")
    assert model.decoder.adaptive_softmax is not None
    probabilities = model.get_normalized_probs(model(*batch()[:3]), False)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 6))
    AdaptiveLoss(TASK, False)(model.train(), sample())[0].backward()
    assert all(p.grad is not None for site in sites(model).values() for p in site.parameters())


@both
def test_shared_embeddings_are_the_same_parameter(arch):
    apart = build(arch)
    decoder = build(arch, share_decoder_input_output_embed=True)
    everything = build(arch, share_all_embeddings=True)
    assert apart.decoder.output_projection.weight is not apart.decoder.embed_tokens.weight
    assert decoder.decoder.output_projection.weight is decoder.decoder.embed_tokens.weight
    assert everything.encoder.embed_tokens is everything.decoder.embed_tokens
    table = 64 * len(DICT)
    assert parameters(apart) - table == parameters(decoder) == parameters(everything) + table


def hooked(model):
    return {name for name, module in model.named_modules() if module._forward_pre_hooks}


@both
def test_product_quantisation_noise_spares_the_sites(arch):
    torch.manual_seed(0)
    model = build(arch, quant_noise_pq=0.5, quant_noise_pq_block_size=8)
    ends = ("fc1", "fc2", "k_proj", "v_proj", "q_proj", "out_proj")
    linears = {n for n, m in model.named_modules() if isinstance(m, nn.Linear) and ".layers." in n}
    assert linears == {name for name, _ in model.named_modules() if name.endswith(ends)}
    assert linears <= hooked(model)
    assert not [name for name in hooked(model) if "_residual" in name]
    before = copied(model)
    logits(model.train())
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    # fairseq's attention reads the weights without calling its projections, so their noise is never applied.
    assert {f"{name}.weight" for name in linears if name.endswith(("fc1", "fc2"))} <= changed
    assert changed <= {f"{name}.weight" for name in hooked(model)}


@pytest.mark.parametrize("no_cross_attention", [False, True])
@both
def test_cross_self_attention_equals_incremental_decoding(arch, no_cross_attention):
    model = build(arch, cross_self_attention=True, no_cross_attention=no_cross_attention)
    for layer in model.decoder.layers:
        assert (layer.encoder_attn is None) == (layer.encoder_attn_residual is None) == no_cross_attention
    source, lengths, previous, _ = batch()
    full = model(source, lengths, previous)[0]
    close(incremental(model, source, lengths, previous), full)
    flipped = model(source.flip(0), lengths.flip(0), previous)[0]
    assert not torch.allclose(flipped[0], full[0], atol=1e-3)  # the source has an effect


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("layer", [None, 0])
def test_alignment_equals_that_of_stock(layer, heads):
    model = stock()
    given = {"alignment_layer": layer, "alignment_heads": heads}
    expected = model(*batch()[:3], **given)[1]["attn"][0]
    found = adopted(model, {})(*batch()[:3], **given)[1]["attn"][0]
    assert torch.equal(found, expected)
    assert found.shape == (3, 6, 7)


@both
def test_alignment_attention_ignores_padding(arch):
    model, rows = build(arch), sentences(3, (3, 6))
    model.make_generation_fast_(need_attn=True)
    for row, found in zip(rows, translate(model, rows), strict=True):
        attention = found[0]["attention"]
        assert attention.shape == (6, len(found[0]["tokens"]))
        torch.testing.assert_close(attention.sum(0), torch.ones(attention.size(1)))
        assert not attention[: 6 - len(row)].any()


@both
def test_layernorm_embedding_adds_one_norm(arch):
    model = build(arch, layernorm_embedding=True)
    assert isinstance(model.encoder.layernorm_embedding, nn.LayerNorm)
    assert parameters(model) == parameters(build(arch)) + 2 * 128
    assert logits(model).isfinite().all()


@both
def test_make_generation_fast_keeps_logits_and_forbids_training(arch):
    model = build(arch, dropout=0.3)
    expected = logits(model)
    model.make_generation_fast_(need_attn=False)
    torch.testing.assert_close(logits(model), expected)
    with pytest.raises(RuntimeError, match="cannot train"):
        model.train()


@each_variant
def test_half_precision_logits_stay_close(name, options):
    model = build(residual=name, **options)
    expected = logits(model)
    with torch.no_grad():
        found = logits(model.half())
    assert found.dtype == torch.float16
    close(found.float(), expected, 0.01)


# --- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", ["pre_ln", "rskip_ln"])
@pytest.mark.parametrize("norm", ["rms", "scale", "dyt", "derf"])
def test_model_with_another_norm_supports_decoding_and_fp16(residual, norm):
    model = build(residual=residual, norm=norm)
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    source, lengths, previous, _ = batch()
    close(incremental(model, source, lengths, previous), model(source, lengths, previous)[0])
    expected = logits(model)
    with torch.no_grad():
        close(logits(model.half()).float(), expected, 0.01)


def test_norm_is_saved():
    build_model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model
    args = settings("transformer_resid_tiny", residual="pre_ln")
    build_model(args, TASK)
    assert args.norm == "layer"
    del args.norm  # as in checkpoints of earlier versions
    assert any(isinstance(module, nn.LayerNorm) for module in build_model(args, TASK).modules())
