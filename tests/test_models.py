"""The models inside fairseq: sizes, names, equality with stock `transformer`, decoding, and fairseq's own features."""

from __future__ import annotations

import argparse
import copy
import re
from pathlib import Path

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.modules import FairseqDropout
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.quantization_utils import quantize_model_scalar
from torch import nn

from fairseq_resid import connections
from fairseq_resid.compat import UserError
from fairseq_resid.models.layers import ResidualDecoderLayer, ResidualEncoderLayer
from fairseq_resid.ops import dispatch
from support import structures
from support.models import (
    COPIES,
    COPY,
    DICT,
    PAD,
    PRE,
    TASK,
    TINY,
    adopted,
    batch,
    build,
    close,
    copied,
    dictionary,
    incremental,
    logits,
    parameters,
    sample,
    sentences,
    settings,
    shaken,
    sites,
    stock,
    translate,
)
from support.structures import each_variant

both = pytest.mark.parametrize("arch", ["transformer_sas_tiny", "transformer_rskip_ln_tiny"])


# --- architectures -------------------------------------------------------------------------------------------------

SUFFIXES = {
    # suffix: (C, FFN, heads, layers per stack, dropout)
    "": (512, 2048, 8, 6, 0.1),
    "_big": (1024, 4096, 16, 6, 0.3),
    "_iwslt_en_vi": (512, 2048, 8, 6, 0.1),
    "_iwslt_en_vi_big": (1024, 4096, 16, 6, 0.3),
    "_wmt_en_de": (512, 2048, 8, 6, 0.1),
    "_wmt_en_de_big": (1024, 4096, 16, 6, 0.3),
    "_wmt_en_fr": (512, 2048, 8, 6, 0.1),
    "_wmt_en_fr_big": (1024, 4096, 16, 6, 0.1),
    "_tiny": (64, 128, 4, 2, 0.1),
}
# With 54 entries in each dictionary, nothing shared; and what the structures add.
STOCK = {64: 177_792, 512: 44_221_440, 1024: 176_523_264}
ADDED = {
    "transformer_resid": {64: 0, 512: 0, 1024: 0},
    "transformer_rskip_ln": {64: 1_280, 512: 30_720, 1024: 61_440},
    "transformer_sas": {64: 166_420, 512: 31_518_780, 1024: 125_952_060},
}


def test_names_of_architectures():
    expected = {family + suffix for family in ADDED for suffix in SUFFIXES}
    assert set(ARCH_MODEL_INV_REGISTRY["transformer_resid"]) == expected


@pytest.mark.parametrize("width", STOCK)
def test_parameters_of_stock(width):
    arch = {64: "transformer", 512: "transformer", 1024: "transformer_vaswani_wmt_en_de_big"}[width]
    with torch.device("meta"):
        model = TransformerModel.build_model(settings(arch, **(TINY if width == 64 else {})), TASK)
    assert parameters(model) == STOCK[width]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("family", ADDED)
def test_architecture(family, suffix):
    arch = family + suffix
    c, ffn, heads, layers, dropout = SUFFIXES[suffix]
    args = settings(arch)
    for stack in ("encoder", "decoder"):
        names = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
        assert [getattr(args, f"{stack}_{name}") for name in names] == [c, ffn, heads, layers]
    assert (args.dropout, args.attention_dropout, args.activation_dropout) == (dropout, 0, 0)
    with torch.device("meta"):
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, TASK)
    assert parameters(model) == STOCK[c] + ADDED[family][c]
    assert sum(p.numel() for p in model.parameters()) == parameters(model)
    assert len(sites(model)) == 5 * layers
    assert {site.dropout.p for site in sites(model).values()} == {dropout}
    assert {site.described["residual"] for site in sites(model).values()} == {args.residual}
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert layer.self_attn.num_heads == heads
        assert tuple(layer.fc1.weight.shape) == (ffn, c)


def test_flags_override_an_architecture():
    args = settings("transformer_sas_big", encoder_embed_dim=32, dropout=0.0, decoder_layers=3)
    assert (args.encoder_embed_dim, args.decoder_embed_dim, args.encoder_ffn_embed_dim) == (32, 32, 4096)
    assert (args.dropout, args.encoder_layers, args.decoder_layers) == (0.0, 6, 3)


# --- options -------------------------------------------------------------------------------------------------------


FAMILIES = {"transformer_sas": "sas", "transformer_sas_tiny": "sas", "transformer_rskip_ln_wmt_en_fr_big": "rskip_ln"}


@pytest.mark.parametrize(
    ("arch", "residual"),
    [(arch, name) for arch, own in FAMILIES.items() for name in ("sas", "rskip_ln", "post_ln") if name != own],
)
def test_another_residual_with_a_named_structure(arch, residual):
    with pytest.raises(UserError, match=f"--residual {residual}") as error:
        settings(arch, residual=residual)
    assert arch in str(error.value)
    assert "transformer_resid" in str(error.value)


@pytest.mark.parametrize("arch", FAMILIES)
def test_the_same_residual_with_a_named_structure(arch):
    assert vars(settings(arch, residual=FAMILIES[arch])) == vars(settings(arch))


def test_a_second_call_on_what_the_first_one_wrote():
    """fairseq applies an architecture again to the config of a checkpoint."""
    args = settings("transformer_sas_tiny", sas_gamma="free")
    args._name = "transformer_sas_tiny"
    before = dict(vars(args))
    ARCH_CONFIG_REGISTRY["transformer_sas_tiny"](args)
    assert vars(args) == before
    args.residual = "post_ln"
    with pytest.raises(UserError, match="--residual post_ln"):
        ARCH_CONFIG_REGISTRY["transformer_sas_tiny"](args)


@pytest.mark.parametrize("arch", ["transformer_resid_tiny", "transformer_sas_tiny", "transformer_rskip_ln_tiny"])
@pytest.mark.parametrize("flags", [["encoder"], ["decoder"], ["encoder", "decoder"]], ids=str)
def test_normalize_before_that_contradicts(arch, flags):
    given = {f"{stack}_normalize_before": True for stack in flags}
    if arch == "transformer_resid_tiny":
        given["residual"] = "rskip_ln" if len(flags) == 2 else "pre_ln"
    with pytest.raises(UserError) as error:
        settings(arch, **given)
    for stack in flags:
        assert f"--{stack}-normalize-before" in str(error.value)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_one_normalize_before_alone(stack):
    with pytest.raises(UserError, match=f"--{stack}-normalize-before with --residual post_ln"):
        settings("transformer_resid_tiny", **{f"{stack}_normalize_before": True})


@pytest.mark.parametrize("given", [PRE, {"residual": "pre_ln"}, {**PRE, "residual": "pre_ln"}], ids=str)
def test_ways_to_say_pre_ln(given):
    args = settings("transformer_resid_tiny", **given)
    ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    assert (args.residual, args.encoder_normalize_before, args.decoder_normalize_before) == ("pre_ln", True, True)


@pytest.mark.parametrize("flag", ["scale_attn", "scale_fc", "scale_heads", "scale_resids"])
@pytest.mark.parametrize("arch", ["transformer_resid_tiny", "transformer_sas_tiny"])
def test_scalings_of_fairseq_are_refused(arch, flag):
    with pytest.raises(UserError, match=f"--{flag.replace('_', '-')}"):
        settings(arch, **{flag: True})


SAS_IMAGE = {"residual": "sas", "sas_gate": "full", "sas_gamma": "coupled", "sas_alpha_bias": 3, "sas_beta_bias": 0}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, {"residual": "post_ln"}),
        ({"residual": "rskip_ln"}, {"residual": "rskip_ln", "skip_lambda": 2}),
        ({"residual": "xskip"}, {"residual": "xskip", "skip_lambda": 1, "branch_scale": 1}),
        (
            {"residual": "exclusive_gate"},
            {
                "residual": "highway",
                "gate_bias": -1,
                "residual_norm": "none",
                "gate_input": "shortcut",
                "gate_layers": 1,
            },
        ),
        ({"residual": "sas", "sas_alpha_bias": 3.0}, SAS_IMAGE),
    ],
    ids=str,
)
def test_options_are_resolved_and_written(given, written):
    args = settings("transformer_resid_tiny", **given)
    model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    for config in (args, model.cfg, model.args):
        assert {key: getattr(config, key) for key in written} == written
    for site in sites(model).values():
        assert site.described == written


@pytest.mark.parametrize(
    ("arch", "given", "text"),
    [
        ("transformer_sas_tiny", {"skip_lambda": 2}, "--skip-lambda 2"),
        ("transformer_rskip_ln_tiny", {"sas_gate": "full"}, "--sas-gate full"),
        ("transformer_rskip_ln_tiny", {"skip_lambda": 0.0}, "--skip-lambda 0"),
        ("transformer_rskip_ln_tiny", {"skip_lambda": 1.5}, "--skip-lambda 1.5"),
        ("transformer_rskip_ln_tiny", {"skip_lambda": float("inf")}, "--skip-lambda inf"),
        ("transformer_resid_tiny", {"residual": "nonsense"}, "--residual nonsense"),
        ("transformer_resid_tiny", {"wskip_init": 2.0}, "--wskip-init 2.0"),
    ],
)
def test_wrong_options_stop_before_the_data_is_loaded(arch, given, text):
    with pytest.raises(UserError, match=re.escape(text)):
        settings(arch, **given)


def test_command_line():
    """Flags survive fairseq's parser and its conversion to a config, from which generation builds the model."""
    parser = fairseq_options.get_training_parser()
    line = "data --task translation --arch transformer_resid_tiny --residual rskip_ln --skip-lambda 3 --dropout 0.2"
    args = fairseq_options.parse_args_and_arch(parser, line.split())
    cfg = convert_namespace_to_omegaconf(args).model
    assert (cfg.residual, cfg.skip_lambda, cfg.dropout) == ("rskip_ln", 3, 0.2)
    model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(cfg, TASK)
    found = {(site.described["skip_lambda"], len(site.recursive_norms)) for site in sites(model).values()}
    assert found == {(3, 2)}
    assert model.cfg.encoder.embed_dim == 64


def test_residual_backend_on_the_command_line(capsys):
    line = ["data", "--task", "translation", "--arch", "transformer_sas_tiny"]

    def parsed(*given):
        return fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), [*line, *given])

    for given, kept in (
        ([], "auto"),
        (["--residual-backend", "eager"], "eager"),
        (["--residual-backend", "triton"], "triton"),
    ):
        cfg = convert_namespace_to_omegaconf(parsed(*given)).model
        model = ARCH_MODEL_REGISTRY["transformer_sas_tiny"].build_model(cfg, TASK)
        assert cfg.residual_backend == kept
        assert {site.backend for site in sites(model).values()} == {kept}
    with pytest.raises(SystemExit):
        parsed("--residual-backend", "cuda")
    assert "--residual-backend: invalid choice: 'cuda'" in capsys.readouterr().err


def test_residual_backend_of_a_checkpoint():
    """One from before the flag is auto; one trained with triton translates where there is no GPU."""
    args = settings("transformer_rskip_ln_tiny")
    assert not hasattr(args, "residual_backend")
    args._name = "transformer_rskip_ln_tiny"
    model = shaken(ARCH_MODEL_REGISTRY["transformer_rskip_ln_tiny"].build_model(args, TASK))
    assert {site.backend for site in sites(model).values()} == {"auto"}
    trained = build("transformer_rskip_ln_tiny", residual_backend="triton")
    trained.load_state_dict(copied(model))
    with torch.no_grad():
        close(logits(trained.eval()), logits(model))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"residual": "highway"}, "--residual-backend triton: there is no kernel for --residual highway"),
        ({"residual": "sas", "sas_gate": "single"}, "--sas-gate single"),
        ({"residual": "sas", "residual_backend": "gpu"}, "--residual-backend gpu: choose one of auto, eager, triton"),
    ],
    ids=str,
)
def test_a_backend_that_cannot_be(given, text):
    with pytest.raises(UserError, match=re.escape(text)):
        settings("transformer_resid_tiny", **{"residual_backend": "triton", **given})


def test_kernels_that_cannot_run_are_refused_in_training_alone(monkeypatch):
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = re.escape("--residual-backend triton: no NVIDIA GPU is used here; use --residual-backend auto")
    with pytest.raises(UserError, match=said):
        settings("transformer_sas_tiny", residual_backend="triton")
    assert settings("transformer_sas_tiny", residual_backend="triton", _name="transformer_sas_tiny")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert settings("transformer_sas_tiny", residual_backend="triton")
    with pytest.raises(UserError, match=said):
        settings("transformer_sas_tiny", residual_backend="triton", cpu=True)


def test_models_do_not_share_their_config():
    first, second = build(residual="sas", sas_gate="single"), build(residual="rskip_ln", decoder_layers=1)
    assert (first.cfg.residual, first.cfg.sas_gate) == ("sas", "single")
    assert (first.cfg.decoder.layers, second.cfg.decoder.layers) == (2, 1)
    assert (second.cfg.residual, second.cfg.skip_lambda) == ("rskip_ln", 2)


def test_mistakes_are_user_errors():
    other = argparse.Namespace(source_dictionary=DICT, target_dictionary=dictionary(9))
    with pytest.raises(UserError, match="joined dictionary"):
        build("transformer_sas_tiny", other, share_all_embeddings=True)


# --- start values, ends of stacks, places ---------------------------------------------------------------------------


def test_the_feed_forward_starts_as_in_tensor2tensor():
    torch.manual_seed(0)
    made = ARCH_MODEL_REGISTRY["transformer_resid"].build_model(
        settings("transformer_resid", ffn_init="xavier", **TINY, dropout=0.0), TASK
    )
    bound = (6 / (64 + 128)) ** 0.5
    for layer in (*made.encoder.layers, *made.decoder.layers):
        for linear in (layer.fc1, layer.fc2):
            assert 0.97 * bound < linear.weight.abs().max() <= bound and not linear.bias.any()
            assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    with pytest.raises(UserError, match="--ffn-init xavier: the residual deep_norm has start values of its own"):
        build(residual="deep_norm", ffn_init="xavier")


def test_without_a_flag_the_start_values_are_stocks():
    """The same draws in the same order: a structure that draws nothing changes no generator."""
    torch.manual_seed(0)
    theirs = TransformerModel.build_model(settings("transformer", **TINY), TASK)
    torch.manual_seed(0)
    ours = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(settings("transformer_resid_tiny"), TASK)
    for name in ("encoder.layers.1.fc1.weight", "decoder.layers.0.encoder_attn.v_proj.weight"):
        assert torch.equal(ours.state_dict()[name], theirs.state_dict()[name])


# One weight of the embedding and one of the last layer, as version 0.3.2 started them.
STARTS = {
    "post_ln": (0.06955984979867935, 0.01904134452342987),
    "sas": (-0.004490195773541927, 0.01731438934803009),
    **dict.fromkeys(["highway", "shortcut_gate", "linear_shortcut"], (0.02383662946522236, 0.053538791835308075)),
    "rskip_ln": (0.06955984979867935, 0.01904134452342987),
}


@pytest.mark.parametrize("residual", STARTS)
def test_a_seed_gives_the_start_values_that_it_gave(residual):
    args = settings("transformer_resid_tiny", residual=residual)
    torch.manual_seed(0)
    model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    found = model.encoder.embed_tokens.weight[7, 3].item(), model.decoder.layers[1].fc2.weight[5, 6].item()
    assert found == pytest.approx(STARTS[residual], rel=1e-6)


@pytest.mark.parametrize("residual", ["post_ln", "sas", "rskip_ln", "xskip"])
def test_a_final_norm_for_every_structure(residual):
    plain, normed = build(residual=residual), build(residual=residual, final_norm="layer")
    ends = {f"{stack}.layer_norm.{name}" for stack in ("encoder", "decoder") for name in ("weight", "bias")}
    assert normed.state_dict().keys() - plain.state_dict().keys() == ends
    assert plain.cfg.final_norm == "none" and normed.cfg.final_norm == "layer"
    with torch.no_grad():
        for stack in (normed.encoder, normed.decoder):
            stack.layer_norm.weight.fill_(2.0), stack.layer_norm.bias.fill_(0.5)
        out = normed.encoder(*batch()[:2])["encoder_out"][0]
    torch.testing.assert_close(out.mean(-1), torch.full(out.shape[:2], 0.5), atol=1e-4, rtol=0)
    torch.testing.assert_close(out.std(-1, unbiased=False), torch.full(out.shape[:2], 2.0), atol=1e-3, rtol=0)


def test_the_depths_are_those_of_the_trained_model():
    """Pruned layers keep their places: --encoder-layers-to-keep must not change α or the layers' numbers."""
    given = {"residual": "deep_norm", "encoder_layers": 4, "decoder_layers": 3}
    args = settings("transformer_resid_tiny", **given)
    whole = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    pruned = build(**given, encoder_layers_to_keep="1,3", decoder_layers_to_keep="2")
    assert len(pruned.encoder.layers) == 2 and pruned.cfg.residual_depths == [4, 3]
    for stack, kept in (("encoder", [1, 3]), ("decoder", [2])):
        layers = getattr(pruned, stack).layers
        for layer, number in zip(layers, kept, strict=True):
            old = getattr(whole, stack).layers[number]
            assert layer.ffn_residual.place == old.ffn_residual.place
            assert layer.ffn_residual.alpha == old.ffn_residual.alpha
    # Decoding prunes a checkpoint's model: its config has the depths.
    again = copy.copy(args)
    again.encoder_layers_to_keep = "0"
    assert ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(again, TASK).cfg.residual_depths == [4, 3]


def omegas(model):
    return [site.skip_weight[0].item() for site in sites(model).values()]


def test_admin_is_profiled_when_a_model_is_made():
    """The same for the same seed in every process; other random numbers stay what they were; a checkpoint keeps it."""
    made = []
    for given in ({}, {}, {"encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9}):
        torch.manual_seed(3)
        args = settings("transformer_resid_tiny", residual="admin", **given)
        made.append(ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK))
        drawn = torch.rand(1)
    torch.manual_seed(3)
    closed = settings("transformer_resid_tiny", residual="admin", admin_start="closed")
    closed = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(closed, TASK)
    assert torch.equal(torch.rand(1), drawn)
    assert omegas(made[0]) == omegas(made[1]) == pytest.approx(omegas(made[2]), rel=0.01)  # other masks
    assert made[0].training and made[2].encoder.layers.p == 0.9
    first = [site.skip_weight[0].item() == 1 for site in sites(made[0]).values()]
    assert [first[0], first[4]] == [True, True] and sum(first) == 2  # of each stack
    assert omegas(closed) == pytest.approx([1.4514] * 4 + [1.6116] * 6, abs=1e-3)
    # As a checkpoint's config is used.
    assert made[0].cfg.residual == "admin" and args.residual_profiled
    again = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    assert set(omegas(again)) == {1.0}
    with pytest.raises(UserError, match="fully_sharded with --residual admin: use --admin-start closed"):
        settings("transformer_resid_tiny", residual="admin", ddp_backend="fully_sharded")


def test_the_sites_of_a_layer_share_rezeros_scalar():
    args = settings("transformer_resid_tiny", residual="rezero")
    model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    for layer in (*model.encoder.layers, *model.decoder.layers):
        scalars = {id(m.branch_scalar) for m in layer.modules() if isinstance(m, connections.ResidualConnection)}
        assert len(scalars) == 1 and layer.ffn_residual.branch_scalar.item() == 0
    encoder = model.eval().encoder
    source, lengths = batch()[:2]
    out = encoder(source, lengths)["encoder_out"][0]
    torch.testing.assert_close(
        out, encoder.forward_embedding(source)[0].transpose(0, 1) * (source != PAD).t()[..., None]
    )


@pytest.mark.parametrize("residual", ["resi_dual", "hyper", "attn_residual", "dense_former"])
def test_a_wide_state_and_base_layers_do_not_go_together(residual):
    with pytest.raises(UserError, match=f"--base-layers 1 with --residual {residual}"):
        settings("transformer_resid_tiny", residual=residual, base_layers=1)


def test_a_namespace_that_is_used_again_has_the_depths_of_now():
    args = settings("transformer_resid_tiny", residual="deep_norm", encoder_layers=4)
    ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    args.encoder_layers = 3
    assert ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK).cfg.residual_depths == [3, 2]


def test_the_order_of_the_parameters_is_frozen():
    """Adam's state in a checkpoint goes by position. The file was written by version 0.1."""
    stored = torch.load(Path(__file__).resolve().parent / "data" / "stored" / "transformer_sas.pt", weights_only=False)[
        "model"
    ]
    model = build("transformer_sas_tiny", encoder_layers=1, decoder_layers=1)
    names = [name for name, _ in model.named_parameters() if ".layers.0." in name]
    assert [name for name in stored if name in set(names)] == names


# --- stock equality ------------------------------------------------------------------------------------------------

STOCKS = {
    "post_ln": ({}, {"residual": "post_ln"}),
    "rskip_ln λ=1": ({}, {"residual": "rskip_ln", "skip_lambda": 1}),
    "pre_ln": (PRE, {"residual": "pre_ln"}),
}
as_stock = pytest.mark.parametrize(("theirs", "ours"), list(STOCKS.values()), ids=list(STOCKS))
DROPPING = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.15}


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


@pytest.mark.parametrize("mode", ["eval", "train", "dropout"])
@as_stock
def test_stock_equality_bitwise(theirs, ours, mode):
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
def test_stock_equality_of_beam_search(theirs, ours):
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
def test_stock_equality_under_other_options(given):
    model = stock(**given)
    assert torch.equal(logits(adopted(model, given)), logits(model))


@pytest.mark.parametrize("final_norm", [True, False])
def test_no_decoder_final_norm(final_norm):
    given = {"no_decoder_final_norm": not final_norm}
    model = stock(**PRE, **given)
    copy = adopted(model, {"residual": "pre_ln", **given})
    assert copy.encoder.layer_norm is not None
    assert (copy.decoder.layer_norm is not None) == final_norm
    assert torch.equal(logits(copy), logits(model))


def as_older_fairseq_writes(model):
    """What 0.12.2 stores of a stock model beside what every fairseq stores."""
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
def test_own_checkpoints_load(name, options):
    model, other = build(residual=name, **options), shaken(build(residual=name, **options), seed=7)
    assert not torch.equal(logits(other), logits(model))
    other.load_state_dict(copied(model))
    assert torch.equal(logits(other.eval()), logits(model))


@pytest.mark.parametrize(
    ("theirs", "ours", "missing"),
    [
        ({}, {"residual": "sas"}, ["encoder.layers.0.self_attn_residual.gate.hidden_weight"]),
        ({}, {"residual": "sas"}, [f"decoder.layers.1.{s}_residual.gate.output_bias" for s in ("encoder_attn", "ffn")]),
        ({}, {"residual": "rskip_ln"}, ["decoder.layers.1.encoder_attn_residual.recursive_norms.0.weight"]),
        ({}, {"residual": "wskip_ln"}, ["encoder.layers.1.ffn_residual.skip_weight"]),
        ({}, {"residual": "pre_ln"}, ["encoder.layer_norm.weight", "decoder.layer_norm.bias"]),
        (PRE, {"residual": "post_ln"}, ["encoder.layer_norm.weight", "decoder.layer_norm.bias"]),
        ({}, {"residual": "xskip"}, ["encoder.layers.0.self_attn_residual.norm.weight"]),
        ({}, {"encoder_ffn_embed_dim": 96}, ["encoder.layers.0.fc1.weight"]),
    ],
    ids=str,
)
def test_a_stock_checkpoint_that_does_not_fit(theirs, ours, missing):
    with pytest.raises(UserError) as error:
        build(**ours).load_state_dict(copied(stock(**theirs)))
    assert f"--residual {ours.get('residual', 'post_ln')}" in str(error.value)
    for key in missing:
        assert key in str(error.value)


def test_an_internal_error_in_loading_is_not_a_misfit(monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    model = build()
    monkeypatch.setattr(type(model.encoder), "upgrade_state_dict_named", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        model.load_state_dict(copied(model))


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
def test_beam_search_does_not_see_the_batch(arch):
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
        if not name.endswith("k_proj.bias"):  # softmax does not see what all keys share
            assert parameter.grad.abs().sum() > 0, name


@each_variant
def test_own_layers_run_in_eval_mode_after_loading(name, options, monkeypatch):
    """0.12.2 would skip a layer's own forward here."""
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


def test_own_layers_are_immune_by_themselves(monkeypatch):
    """Also where nothing in fairseq is bridged: neither of 0.12.2's two conditions for its path holds."""
    plain = TransformerEncoderLayerBase.__init__
    monkeypatch.setattr(TransformerEncoderLayerBase, "__init__", plain.__wrapped__)
    model = build()
    model.load_state_dict(copied(model))
    for layer in model.encoder.layers:
        assert not layer.can_use_fastpath
        assert not getattr(layer, "load_to_BT", False)


def test_stock_decodes_left_padded_batches():
    """0.12.2's own encoder crashes here, once it has loaded weights, unless its BetterTransformer path is closed."""
    model, rows = stock(), sentences(3, (2, 4, 7))
    model.load_state_dict(copied(model))
    model.eval()
    with torch.no_grad():
        together = translate(model, rows)
        for row, found in zip(rows, together, strict=True):
            assert torch.equal(translate(model, [row])[0][0]["tokens"], found[0]["tokens"])


@each_variant
def test_torchscript(name, options):
    model = build(residual=name, **options, encoder_layers=1, decoder_layers=2)
    scripted = torch.jit.script(model)
    close(logits(scripted), logits(model))


# --- one layer beside stock's --------------------------------------------------------------------------------------

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
def test_attention_of_a_decoder_layer_is_that_of_stock(theirs, ours, given, fast, training):
    model = stock(**theirs, dropout=0.0)
    results = []
    for each in (model, adopted(model, {**ours, "dropout": 0.0})):
        layer = each.decoder.layers[1].train(training)
        if fast:
            layer.make_generation_fast_(need_attn=False)
        results.append(layer(X, ENCODED, SOURCE_PADDING, **given))
    same(results[1], results[0])
    assert (results[0][1] is None) == (not given and (fast or training))


@pytest.mark.parametrize("masked", [False, True])
@as_stock
def test_states_handed_to_a_decoder_layer(theirs, ours, masked):
    """The path of ONNX export: keys and values of earlier steps come and go as tensors."""
    model = stock(**theirs)
    own = [torch.randn(3, 4, 2, 16, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    encoder = [torch.randn(3, 4, 5, 16, generator=torch.Generator().manual_seed(i)) for i in range(2, 4)]
    padding = {}
    if masked:
        own.append(torch.zeros(3, 2, dtype=torch.bool))
        own[2][1, 0] = True
        encoder.append(SOURCE_PADDING)
        padding = {"self_attn_padding_mask": torch.zeros(3, 1, dtype=torch.bool)}
    results = []
    for each in (model, adopted(model, ours)):
        layer = each.decoder.layers[0]
        layer.prepare_for_onnx_export_()
        states = {"incremental_state": {}, "prev_self_attn_state": list(own), "prev_attn_state": list(encoder)}
        results.append(layer(X[:1], ENCODED, SOURCE_PADDING, **states, **padding))
    same(results[1], results[0])
    assert [len(state) for state in results[1][2]] == [3] * (3 if masked else 2)


@pytest.mark.parametrize("return_fc", [False, True])
@pytest.mark.parametrize("mask", [None, torch.ones(4, 4).triu(1)], ids=["all", "causal"])
@as_stock
def test_an_encoder_layer_beside_stock(theirs, ours, mask, return_fc):
    model = stock(**theirs)
    padding = SOURCE_PADDING[:, 1:]
    results = []
    for each in (model, adopted(model, ours)):
        layer = each.encoder.layers[1]
        layer.return_fc = return_fc
        results.append(layer(X, padding, mask))
    same(results[1], results[0])
    assert isinstance(results[1], tuple) == return_fc


# --- fairseq's features --------------------------------------------------------------------------------------------


def needs_every_layer(name, options):
    return connections.needs_every_layer(name, connections.resolve(name, options))


CASES = structures.variants().values()
whole = structures.over("name options", [case for case in CASES if needs_every_layer(*case)])
droppable = structures.over("name options", [case for case in CASES if not needs_every_layer(*case)])


@pytest.mark.parametrize("flag", ["encoder_layerdrop", "decoder_layerdrop"])
@whole
def test_a_structure_that_needs_every_layer_refuses_layer_drop(name, options, flag):
    given = {"residual": name, **options}
    with pytest.raises(UserError, match=rf"--{flag.replace('_', '-')} 0.5 with --residual {name}"):
        settings("transformer_resid_tiny", **given, **{flag: 0.5})
    keep = flag.replace("layerdrop", "layers_to_keep")
    with pytest.raises(UserError, match=rf"--{keep.replace('_', '-')} 1 with --residual {name}"):
        settings("transformer_resid_tiny", **given, **{keep: "1"})


@droppable
def test_layerdrop(name, options):
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
def test_layers_to_keep(name, options):
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
def test_layers_to_keep_of_a_stock_checkpoint(theirs, ours):
    full = stock(**theirs, **DEEP)
    expected = pruned(copied(full), stock, "transformer", **theirs)
    model = pruned(copied(full), build, "transformer_resid_tiny", **ours)
    assert torch.equal(logits(model), logits(expected))


@each_variant
def test_checkpoint_activations(name, options):
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
def test_adaptive_softmax(arch):
    model = build(arch, adaptive_softmax_cutoff="20,40")
    assert model.decoder.adaptive_softmax is not None
    probabilities = model.get_normalized_probs(model(*batch()[:3]), False)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 6))
    AdaptiveLoss(TASK, False)(model.train(), sample())[0].backward()
    assert all(p.grad is not None for site in sites(model).values() for p in site.parameters())


@both
def test_shared_embeddings(arch):
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
def test_quant_noise_pq(arch):
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
    # fairseq's attention takes the weights without calling its projections, whose noise so stays out.
    assert {f"{name}.weight" for name in linears if name.endswith(("fc1", "fc2"))} <= changed
    assert changed <= {f"{name}.weight" for name in hooked(model)}


@pytest.mark.parametrize(
    "given",
    [{"residual": name} for name in ("sas", "rskip_ln", "highway")] + [{"residual": "sas", "sas_gate": "single"}],
    ids=str,
)
def test_quant_noise_scalar(given, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)  # fairseq's scalar noise knows only GPUs
    model = build(**given)
    before = {name: type(module) for name, module in model.named_modules()}
    quantize_model_scalar(model, argparse.Namespace(quant_noise_scalar=0.5))
    replaced = {name for name, module in model.named_modules() if before.get(name) is not type(module)}
    replaced = {name for name in replaced if name in before}
    linears = {name for name, kind in before.items() if kind is nn.Linear}
    assert linears <= replaced
    assert len(linears) == 2 * 6 + 2 * 10 + 1
    for name, site in sites(model).items():
        assert not [key for key in replaced if key.startswith(name)]
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in site.modules())
    assert logits(model.train()).isfinite().all()


@pytest.mark.parametrize("no_cross_attention", [False, True])
@both
def test_cross_self_attention(arch, no_cross_attention):
    model = build(arch, cross_self_attention=True, no_cross_attention=no_cross_attention)
    for layer in model.decoder.layers:
        assert (layer.encoder_attn is None) == (layer.encoder_attn_residual is None) == no_cross_attention
    source, lengths, previous, _ = batch()
    full = model(source, lengths, previous)[0]
    close(incremental(model, source, lengths, previous), full)
    flipped = model(source.flip(0), lengths.flip(0), previous)[0]
    assert not torch.allclose(flipped[0], full[0], atol=1e-3)  # the source is seen


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("layer", [None, 0])
def test_alignment_is_that_of_stock(layer, heads):
    model = stock()
    given = {"alignment_layer": layer, "alignment_heads": heads}
    expected = model(*batch()[:3], **given)[1]["attn"][0]
    found = adopted(model, {})(*batch()[:3], **given)[1]["attn"][0]
    assert torch.equal(found, expected)
    assert found.shape == (3, 6, 7)


@both
def test_print_alignment(arch):
    model, rows = build(arch), sentences(3, (3, 6))
    model.make_generation_fast_(need_attn=True)
    for row, found in zip(rows, translate(model, rows), strict=True):
        attention = found[0]["attention"]
        assert attention.shape == (6, len(found[0]["tokens"]))
        torch.testing.assert_close(attention.sum(0), torch.ones(attention.size(1)))
        assert not attention[: 6 - len(row)].any()


@both
def test_layernorm_embedding(arch):
    model = build(arch, layernorm_embedding=True)
    assert isinstance(model.encoder.layernorm_embedding, nn.LayerNorm)
    assert parameters(model) == parameters(build(arch)) + 2 * 128
    assert logits(model).isfinite().all()


def test_no_pretrained_models_of_stock():
    assert TransformerModel.hub_models()
    assert ARCH_MODEL_REGISTRY["transformer_sas"].hub_models() == {}


@both
def test_make_generation_fast(arch):
    model = build(arch, dropout=0.3)
    expected = logits(model)
    model.make_generation_fast_(need_attn=False)
    torch.testing.assert_close(logits(model), expected)
    with pytest.raises(RuntimeError, match="cannot train"):
        model.train()


@both
def test_retain_dropout_modules(arch):
    """--retain-dropout-modules names layer classes; the dropout of a layer's sites goes by its name."""
    model = build(arch, dropout=0.3)
    kept = {"retain_dropout": True, "retain_dropout_modules": ["ResidualEncoderLayer"]}
    model.make_generation_fast_(**kept)
    for name, module in model.named_modules():
        if isinstance(module, FairseqDropout):
            inside = name.startswith("encoder.layers.") and "self_attn.dropout" not in name
            assert module.apply_during_inference == inside, name
    first, second = logits(model), logits(model)
    assert not torch.allclose(first, second)


@each_variant
def test_half(name, options):
    model = build(residual=name, **options)
    expected = logits(model)
    with torch.no_grad():
        found = logits(model.half())
    assert found.dtype == torch.float16
    close(found.float(), expected, 0.01)
