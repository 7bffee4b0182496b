"""Architectures, options, initial values and places of the translation models."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel

from fairseq_resid import connections
from fairseq_resid.fairseq_patches import UserError
from support.models import PAD, PRE, TASK, TINY, batch, build, parameters, settings, sites

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
# Numbers of parameters by width: those of stock models, and those that each family adds. Both vocabularies have
# 54 entries, and no embeddings are shared.
STOCK = {64: 177_792, 512: 44_221_440, 1024: 176_523_264}
ADDED = {
    "transformer_resid": {64: 0, 512: 0, 1024: 0},
    "transformer_rskip_ln": {64: 1_280, 512: 30_720, 1024: 61_440},
    "transformer_sas": {64: 166_420, 512: 31_518_780, 1024: 125_952_060},
}


def test_names_of_architectures_are_registered():
    expected = {family + suffix for family in ADDED for suffix in SUFFIXES}
    assert set(ARCH_MODEL_INV_REGISTRY["transformer_resid"]) == expected


@pytest.mark.parametrize("width", STOCK)
def test_stock_models_have_known_parameter_counts(width):
    arch = {64: "transformer", 512: "transformer", 1024: "transformer_vaswani_wmt_en_de_big"}[width]
    with torch.device("meta"):
        model = TransformerModel.build_model(settings(arch, **(TINY if width == 64 else {})), TASK)
    assert parameters(model) == STOCK[width]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("family", ADDED)
def test_architectures_have_their_published_sizes(family, suffix):
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


def test_named_architecture_accepts_only_its_own_residual():
    with pytest.raises(UserError, match="--residual post_ln: --arch transformer_sas_tiny"):
        settings("transformer_sas_tiny", residual="post_ln")
    assert vars(settings("transformer_sas_tiny", residual="sas")) == vars(settings("transformer_sas_tiny"))


def test_applying_an_architecture_twice_changes_nothing():
    """fairseq applies an architecture again to the config of a checkpoint."""
    args = settings("transformer_sas_tiny", sas_gamma="free")
    args._name = "transformer_sas_tiny"
    before = dict(vars(args))
    ARCH_CONFIG_REGISTRY["transformer_sas_tiny"](args)
    assert vars(args) == before
    args.residual = "post_ln"
    with pytest.raises(UserError, match="--residual post_ln"):
        ARCH_CONFIG_REGISTRY["transformer_sas_tiny"](args)


@pytest.mark.parametrize(
    "given", [PRE, {"encoder_normalize_before": True}, {"decoder_normalize_before": True}], ids=str
)
def test_contradictory_normalize_before_is_refused(given):
    for residual in ("rskip_ln", "sas") if given is PRE else ("pre_ln", "post_ln"):
        with pytest.raises(UserError, match="-normalize-before"):
            settings("transformer_resid_tiny", residual=residual, **given)


@pytest.mark.parametrize("given", [PRE, {"residual": "pre_ln"}, {**PRE, "residual": "pre_ln"}], ids=str)
def test_all_spellings_of_pre_ln_agree(given):
    args = settings("transformer_resid_tiny", **given)
    ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    assert (args.residual, args.encoder_normalize_before, args.decoder_normalize_before) == ("pre_ln", True, True)


@pytest.mark.parametrize("flag", ["scale_attn", "scale_fc", "scale_heads", "scale_resids"])
def test_fairseq_scalings_are_refused(flag):
    with pytest.raises(UserError, match=f"--{flag.replace('_', '-')}"):
        settings("transformer_resid_tiny", **{flag: True})


SAS = {"residual": "sas", "sas_gate": "full", "sas_gamma": "coupled", "sas_alpha_bias": 0, "sas_beta_bias": -3}


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
        ({"residual": "sas", "sas_alpha_bias": 0.0}, SAS),
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
        ("transformer_rskip_ln_tiny", {"skip_lambda": 1.5}, "--skip-lambda 1.5"),
        ("transformer_resid_tiny", {"residual": "highway", "norm": "scale"}, "--norm scale: --residual highway has no"),
    ],
)
def test_wrong_options_are_refused_before_loading_the_data(arch, given, text):
    with pytest.raises(UserError, match=re.escape(text)):
        settings(arch, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"residual": "xskip", "norm": "layer"},
        {"residual": "xskip", "norm": "rms", "final_norm": "layer"},
        {"residual": "highway", "norm": "rms", "residual_norm": "layer"},
        {"residual": "xskip", "norm": "rms", "_name": "transformer_resid_tiny"},  # the config of a checkpoint
    ],
)
def test_norm_is_accepted_where_it_has_an_effect_and_in_old_configs(given):
    assert build("transformer_resid_tiny", **given).cfg.norm == given["norm"]


def test_flags_survive_parser_and_config():
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


def test_command_line_sets_the_residual_backend():
    line = ["data", "--task", "translation", "--arch", "transformer_sas_tiny"]
    for given, kept in (
        ([], "eager"),
        (["--residual-backend", "auto"], "eager"),
        (["--residual-backend", "compile"], "compile"),
    ):
        args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), [*line, *given])
        cfg = convert_namespace_to_omegaconf(args).model
        model = ARCH_MODEL_REGISTRY["transformer_sas_tiny"].build_model(cfg, TASK)
        assert cfg.residual_backend == kept
        assert {site.backend for site in sites(model).values()} == {kept}


@pytest.mark.parametrize("recorded", [None, "auto", "triton"])
def test_backend_in_an_old_checkpoint_means_eager(recorded):
    args = settings("transformer_rskip_ln_tiny", _name="transformer_rskip_ln_tiny")
    vars(args).pop("residual_backend", None)
    if recorded:
        args.residual_backend = recorded
    model = ARCH_MODEL_REGISTRY["transformer_rskip_ln_tiny"].build_model(args, TASK)
    assert {site.backend for site in sites(model).values()} == {"eager"}


def test_unknown_and_removed_backends_are_refused():
    for given, text in (("triton", "version 1.1; use compile"), ("gpu", "choose one of eager, compile")):
        with pytest.raises(UserError, match=f"--residual-backend {given}: .*{text}"):
            settings("transformer_sas_tiny", residual_backend=given)


def test_backend_compile_needs_a_compiler_only_in_training(monkeypatch):
    monkeypatch.setattr("fairseq_resid.models.structures.missing_compiler", lambda: "none was found")
    with pytest.raises(UserError, match="--residual-backend compile: none was found; use eager"):
        settings("transformer_sas_tiny", residual_backend="compile")
    args = settings("transformer_sas_tiny", residual_backend="compile", _name="transformer_sas_tiny")
    model = ARCH_MODEL_REGISTRY["transformer_sas_tiny"].build_model(args, TASK)
    assert {site.backend for site in sites(model).values()} == {"eager"}


def test_models_do_not_share_their_config():
    first, second = build(residual="sas", sas_gate="single"), build(residual="rskip_ln", decoder_layers=1)
    assert (first.cfg.residual, first.cfg.sas_gate) == ("sas", "single")
    assert (first.cfg.decoder.layers, second.cfg.decoder.layers) == (2, 1)
    assert (second.cfg.residual, second.cfg.skip_lambda) == ("rskip_ln", 2)


# --- initial values, ends of stacks, places ---------------------------------------------------------------------------


def test_feed_forward_starts_as_in_tensor2tensor():
    torch.manual_seed(0)
    made = ARCH_MODEL_REGISTRY["transformer_resid"].build_model(
        settings("transformer_resid", ffn_init="xavier", **TINY, dropout=0.0), TASK
    )
    bound = (6 / (64 + 128)) ** 0.5
    for layer in (*made.encoder.layers, *made.decoder.layers):
        for linear in (layer.fc1, layer.fc2):
            assert 0.97 * bound < linear.weight.abs().max() <= bound and not linear.bias.any()
            assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    with pytest.raises(UserError, match="--ffn-init xavier: the residual deep_norm has its own initial values"):
        build(residual="deep_norm", ffn_init="xavier")


def test_initial_values_equal_those_of_stock_by_default():
    """A structure without random initial values draws no random numbers, so all other weights start the same."""
    torch.manual_seed(0)
    theirs = TransformerModel.build_model(settings("transformer", **TINY), TASK)
    torch.manual_seed(0)
    ours = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(settings("transformer_resid_tiny"), TASK)
    for name in ("encoder.layers.1.fc1.weight", "decoder.layers.0.encoder_attn.v_proj.weight"):
        assert torch.equal(ours.state_dict()[name], theirs.state_dict()[name])


# One weight of the embedding and one of the last layer, with the values that version 0.3.2 gave them.
STARTS = {
    "post_ln": (0.06955984979867935, 0.01904134452342987),
    "sas": (-0.004490195773541927, 0.01731438934803009),
    **dict.fromkeys(["highway", "shortcut_gate", "linear_shortcut"], (0.02383662946522236, 0.053538791835308075)),
    "rskip_ln": (0.06955984979867935, 0.01904134452342987),
}


@pytest.mark.parametrize("residual", STARTS)
def test_initial_values_of_a_seed_are_frozen(residual):
    args = settings("transformer_resid_tiny", residual=residual)
    torch.manual_seed(0)
    model = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    found = model.encoder.embed_tokens.weight[7, 3].item(), model.decoder.layers[1].fc2.weight[5, 6].item()
    assert found == pytest.approx(STARTS[residual], rel=1e-6)


@pytest.mark.parametrize("residual", ["post_ln", "sas", "rskip_ln", "xskip"])
def test_every_structure_accepts_a_final_norm(residual):
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


def test_pruned_layers_keep_their_trained_depth():
    """Layers that remain after pruning keep their places, so --encoder-layers-to-keep does not change their α."""
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
    # If the model of a checkpoint is pruned for decoding, the config contains the trained depths.
    again = copy.copy(args)
    again.encoder_layers_to_keep = "0"
    assert ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(again, TASK).cfg.residual_depths == [4, 3]


def omegas(model):
    return [site.skip_weight[0].item() for site in sites(model).values()]


def test_building_a_model_profiles_admin():
    """Profiling gives the same values for the same seed and does not change other random draws.

    A model that is built from the config of a profiled model is not profiled again.
    """
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
    assert omegas(made[0]) == omegas(made[1]) == pytest.approx(omegas(made[2]), rel=0.01)  # different dropout masks
    assert made[0].training and made[2].encoder.layers.p == 0.9
    first = [site.skip_weight[0].item() == 1 for site in sites(made[0]).values()]
    assert [first[0], first[4]] == [True, True] and sum(first) == 2  # one per stack
    assert omegas(closed) == pytest.approx([1.4514] * 4 + [1.6116] * 6, abs=1e-3)
    # The saved config names the structure and records that it has been profiled.
    assert made[0].cfg.residual == "admin" and args.residual_profiled
    again = ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    assert set(omegas(again)) == {1.0}
    with pytest.raises(UserError, match=r"fully_sharded with --residual admin: .*; use --admin-start closed"):
        settings("transformer_resid_tiny", residual="admin", ddp_backend="fully_sharded")


def test_rezero_shares_one_scalar_per_layer():
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


def test_base_layers_refuse_wide_states():
    with pytest.raises(UserError, match="--base-layers 1 with --residual hyper"):
        settings("transformer_resid_tiny", residual="hyper", base_layers=1)


def test_reused_namespace_gets_current_depths():
    args = settings("transformer_resid_tiny", residual="deep_norm", encoder_layers=4)
    ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK)
    args.encoder_layers = 3
    assert ARCH_MODEL_REGISTRY["transformer_resid_tiny"].build_model(args, TASK).cfg.residual_depths == [3, 2]


def test_order_of_parameters_is_frozen():
    """Adam's state in a checkpoint depends on the order of parameters. Version 0.1 wrote the stored file."""
    stored = torch.load(Path(__file__).resolve().parents[1] / "stored" / "transformer_sas.pt", weights_only=False)[
        "model"
    ]
    model = build("transformer_sas_tiny", encoder_layers=1, decoder_layers=1)
    names = [name for name, _ in model.named_parameters() if ".layers.0." in name]
    assert [name for name in stored if name in set(names)] == names
