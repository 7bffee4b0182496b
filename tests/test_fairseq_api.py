"""fairseq used from Python, as scripts written for `transformer` use it, with the architectures of this package.

Models are built by fairseq.options.get_args and task.build_model, prepared for inference, loaded as an ensemble, and
trained by online back-translation. Where stock's model does the same, it is the reference.
"""

from __future__ import annotations

import argparse
import copy
import re
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STOCK
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.modules import FairseqDropout
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from fairseq_resid import connections
from fairseq_resid.compat import UserError
from fairseq_resid.connections.self_adaptive import SelfAdaptiveScaling
from fairseq_resid.models import ResidualTransformerModel
from fairseq_resid.models.layers import ResidualEncoderLayer
from support import structures

Command = Callable[..., Any]
ARCHS = {"transformer_sas_tiny": "sas", "transformer_rskip_ln_tiny": "rskip_ln", "transformer_resid_tiny": "post_ln"}
archs = pytest.mark.parametrize("arch", ARCHS)


def built(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return the task and a new model of a command line."""
    task = tasks.setup_task(args)
    torch.manual_seed(0)
    return task, task.build_model(args)


def stock(corpus: Path) -> Any:
    """Return fairseq's own model in the size of our _tiny architectures."""
    parser = options.get_training_parser()
    return built(options.parse_args_and_arch(parser, [str(corpus), "--task", "translation", *STOCK]))[1]


def described(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return what each site is: its --residual name and its options."""
    return [site.described for site in model.modules() if isinstance(site, connections.ResidualConnection)]


def pairs(task: Any, split: str = "valid", count: int = 8) -> dict[str, Any]:
    """Return the first pairs of a set as one batch."""
    if split not in task.datasets:
        task.load_dataset(split)
    dataset = task.dataset(split)
    return dataset.collater([dataset[number] for number in range(count)])


def logits(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch["net_input"])[0]


# --- building ------------------------------------------------------------------------------------------------------

PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
GIVEN: list[Any] = [
    *((arch, {}, {"residual": residual}) for arch, residual in ARCHS.items()),
    *(
        pytest.param("transformer_resid_tiny", {"residual": each}, {}, marks=pytest.mark.structures)
        for name in structures.NAMES
        for each in (name, *connections.aliases(name))
    ),
    ("transformer_sas_tiny", {"residual": "sas"}, {}),
    ("transformer_rskip_ln_tiny", {"residual": "rskip_ln", "skip_lambda": 3}, {}),
    ("transformer_sas_tiny", {"sas_gate": "single", "sas_gamma": "free"}, {"residual": "sas"}),
    ("transformer_resid_tiny", {"residual": "highway", "residual_norm": "layer"}, {}),
    ("transformer_resid_tiny", {"residual": "rskip_ln", "residual_backend": "eager"}, {}),
    ("transformer_resid_tiny", PRE, {"residual": "pre_ln"}),
    ("transformer_resid_tiny", {**PRE, "residual": "pre_ln", "no_decoder_final_norm": True}, {}),
]


@pytest.mark.parametrize("form", ["namespace", "config"])
@pytest.mark.parametrize(("arch", "given", "implied"), GIVEN, ids=lambda case: str(case))
def test_a_named_architecture_is_built_from_python(
    arch: str, given: dict[str, Any], implied: dict[str, Any], form: str, corpus: Path
) -> None:
    """get_args applies the architecture, then sets what it was given; building the model applies it again."""
    args = options.get_args(str(corpus), arch=arch, **given)
    task = tasks.setup_task(args)
    settings = args if form == "namespace" else convert_namespace_to_omegaconf(args).model
    model = task.build_model(settings)
    expected = {**given, **implied}
    expected["residual"] = connections.canonical(expected["residual"])
    for config in (settings, model.cfg):
        assert {name: getattr(config, name) for name in expected} == expected
    found = described(model)
    assert len(found) == 10
    assert all(site[name] == value for site in found for name, value in expected.items() if name in site)
    ends_in_norm = connections.structure(expected["residual"]).final_norm is not False
    assert (model.encoder.layer_norm is not None) == ends_in_norm

    before, names = copy.deepcopy(vars(settings)), list(model.state_dict())
    again = task.build_model(settings)
    assert vars(settings) == before
    assert list(again.state_dict()) == names and described(again) == found


@pytest.mark.parametrize(
    ("arch", "given", "said"),
    [
        ("transformer_sas_tiny", {"residual": "rskip_ln"}, "--residual rskip_ln: --arch transformer_sas_tiny is sas"),
        ("transformer_sas_tiny", {"skip_lambda": 2}, "--skip-lambda 2: not an option of the residual sas"),
        ("transformer_sas_tiny", PRE, "--encoder-normalize-before --decoder-normalize-before with --residual sas"),
        ("transformer_resid_tiny", {"decoder_normalize_before": True}, "--decoder-normalize-before with"),
        ("transformer_resid_tiny", {"encoder_attention_heads": 3}, "--encoder-attention-heads 3: must divide"),
        ("transformer_resid_tiny", {"decoder_attention_heads": 0}, "--decoder-attention-heads 0: must divide"),
    ],
    ids=str,
)
def test_contradictions_given_in_python(arch: str, given: dict[str, Any], said: str, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch=arch, **given)
    with pytest.raises(UserError, match=re.escape(said)):
        tasks.setup_task(args).build_model(args)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"share_all_embeddings": True},
        {"share_all_embeddings": True, "min_params_to_wrap": 7},
        {"encoder_layers": 4, "encoder_layers_to_keep": "1,3", "decoder_layers_to_keep": "0"},
        {"offload_activations": True},
        {"max_source_positions": None, "max_target_positions": 64},
    ],
    ids=str,
)
def test_what_is_written_back_is_what_stock_writes(given: dict[str, Any], corpus: Path) -> None:
    """An old command line has a few values; after building, it has everything the model was made of."""
    task = tasks.setup_task(options.get_args(str(corpus)))
    size = {"encoder_embed_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1}
    theirs, ours = (argparse.Namespace(**{**size, "decoder_layers": 1, **given}) for _ in range(2))
    expected = TransformerModel.build_model(theirs, task)
    model = ResidualTransformerModel.build_model(ours, task)
    depths = [given.get("encoder_layers", 1), given.get("decoder_layers", 1)]
    mine = {"residual": "post_ln", "residual_backend": "auto", "final_norm": "none", "ffn_init": "default"}
    assert vars(ours) == {**vars(theirs), **mine, "residual_depths": depths}
    assert (model.args is model.cfg) == (expected.args is expected.cfg)
    for name in vars(theirs):
        assert getattr(model.args, name) == getattr(expected.args, name), name
    assert len(model.encoder.layers) == ours.encoder_layers


@pytest.mark.parametrize(
    "args",
    [{"residual": "sas"}, OmegaConf.create({"residual": "sas"}), "transformer_sas", None, TransformerConfig()],
    ids=lambda args: type(args).__name__,
)
def test_what_is_no_namespace_is_named(args: Any, corpus: Path) -> None:
    task = tasks.setup_task(options.get_args(str(corpus)))
    with pytest.raises(UserError, match=rf"take an argparse\.Namespace, not {type(args).__name__}"):
        ResidualTransformerModel.build_model(args, task)
    config = OmegaConf.create({"arch": "transformer_sas_tiny"})
    with pytest.raises(UserError, match=r"take an argparse\.Namespace, not DictConfig"):
        task.build_model(config)
    assert dict(config) == {"arch": "transformer_sas_tiny"}


@pytest.mark.parametrize("kind", [ValueError, AssertionError])
@pytest.mark.parametrize("where", [SelfAdaptiveScaling, ResidualEncoderLayer])
def test_an_internal_error_keeps_its_traceback(
    where: Any, kind: Any, corpus: Path, train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, *args: Any, **kwargs: Any) -> None:
        raise kind("a bug")

    monkeypatch.setattr(where, "__init__", broken)
    with pytest.raises(kind, match="a bug") as caught:
        train(tmp_path, "--arch", "transformer_sas_tiny")
    assert not isinstance(caught.value, SystemExit)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"decoder_embed_dim": 32}, "to match --decoder-embed-dim"),
        ({"decoder_embed_path": "vectors"}, "not compatible with --decoder-embed-path"),
    ],
    ids=str,
)
def test_what_stock_checks_is_one_line(given: dict[str, Any], said: str, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch="transformer_sas_tiny", share_all_embeddings=True, **given)
    with pytest.raises(UserError, match=said):
        tasks.setup_task(args).build_model(args)


# --- dropout in inference ------------------------------------------------------------------------------------------


def kept(model: torch.nn.Module) -> set[str]:
    """Return the names of the dropouts that go on in inference, those of our sites by stock's one per layer."""
    names = (name for name, module in model.named_modules() if isinstance(module, FairseqDropout) and drops(module))
    return {re.sub(r"(self_attn|encoder_attn|ffn)_residual\.dropout$", "dropout_module", name) for name in names}


def drops(module: torch.nn.Module) -> bool:
    ones = torch.ones(4000)
    return not torch.equal(module(ones), ones)


def prepared(args: argparse.Namespace, **generation: Any) -> Any:
    """Return a model as fairseq-generate prepares it."""
    _, model = built(args)
    cfg = convert_namespace_to_omegaconf(args)
    for name, value in generation.items():
        setattr(cfg.generation, name, value)
    model.prepare_for_inference_(cfg)
    return model


DROPPING = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}


@archs
def test_no_dropout_in_inference(arch: str, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch=arch, **DROPPING)
    assert kept(prepared(args)) == set()
    assert kept(prepared(args, retain_dropout=False, retain_dropout_modules=["TransformerEncoder"])) == set()


@archs
def test_dropout_in_training_and_not_after(arch: str, corpus: Path) -> None:
    _, model = built(options.get_args(str(corpus), arch=arch, **DROPPING))
    everything = {name for name, module in model.named_modules() if isinstance(module, FairseqDropout)}
    model.train()
    assert len(kept(model)) == len(everything) - 2 * 1 - 2 * 2  # a layer's sites count once
    model.eval()
    assert kept(model) == set()


@archs
def test_retained_dropout(arch: str, corpus: Path) -> None:
    model = prepared(options.get_args(str(corpus), arch=arch, **DROPPING), retain_dropout=True)
    for name, module in model.named_modules():
        if isinstance(module, FairseqDropout):
            assert not module.training and drops(module), name
    reference = stock(corpus)
    for module in reference.modules():
        if isinstance(module, FairseqDropout):
            module.p = 0.3
    reference.make_generation_fast_(retain_dropout=True)
    assert kept(model) == kept(reference)


STACKS, LAYERS = ["TransformerEncoder", "TransformerDecoder"], ["TransformerEncoderLayer", "TransformerDecoderLayer"]
BASES = [name + "Base" for name in LAYERS]


@pytest.mark.parametrize(
    "names",
    [
        [],
        STACKS,
        STACKS[:1],
        LAYERS,
        STACKS + LAYERS,
        BASES,
        BASES[1:],
        [*BASES, *STACKS, "MultiheadAttention"],
        ["X"],
        "TransformerDecoder",
        "TransformerEncoder,TransformerDecoder",
        "TransformerDecoderLayerBase",
    ],
    ids=str,
)
@archs
def test_the_dropouts_that_stock_retains_are_retained(arch: str, names: list[str] | str, corpus: Path) -> None:
    """fairseq takes a list in Python, and a text on the command line, in which it looks for each name."""
    reference = stock(corpus)
    for module in reference.modules():
        if isinstance(module, FairseqDropout):
            module.p = 0.3
    reference.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    args = options.get_args(str(corpus), arch=arch, **DROPPING)
    model = prepared(args, retain_dropout=True, retain_dropout_modules=names)
    assert kept(model) == kept(reference)
    assert bool(kept(model)) == any(name in names for name in [*STACKS, *BASES])


@pytest.mark.parametrize(
    ("names", "inside"),
    [(["ResidualTransformerEncoder"], r"encoder\.dropout_module"), (["ResidualDecoderLayer"], r"decoder\.layers\..*")],
)
def test_own_class_names_retain_dropout_too(names: list[str], inside: str, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch="transformer_sas_tiny", **DROPPING)
    found = kept(prepared(args, retain_dropout=True, retain_dropout_modules=names))
    assert found and all(re.fullmatch(inside, name) and "attn" not in name for name in found)


def test_a_model_within_a_model_retains_dropout(corpus: Path) -> None:
    """fairseq goes through all modules of the outer model, and hands each its name."""
    _, model = built(options.get_args(str(corpus), arch="transformer_sas_tiny", **DROPPING))
    outer = FairseqEncoderDecoderModel(model.encoder, model.decoder)
    outer.inner = model
    outer.make_generation_fast_(retain_dropout=True, retain_dropout_modules=STACKS)
    assert kept(model) == {"encoder.dropout_module", "decoder.dropout_module"}


@pytest.mark.parametrize(
    ("flags", "shortcuts"),
    [
        ({}, 0),
        ({"retain_dropout": True}, 10),
        ({"retain_dropout": True, "retain_dropout_modules": STACKS}, 0),
        ({"retain_dropout": True, "retain_dropout_modules": BASES[:1]}, 4),
        ({"retain_dropout": True, "retain_dropout_modules": ["ResidualDecoderLayer"]}, 6),
    ],
    ids=str,
)
def test_the_dropout_of_a_shortcut_obeys_the_flags(flags: dict[str, Any], shortcuts: int, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch="transformer_resid_tiny", residual="dropout_shortcut", dropout=0.0)
    model = prepared(args, **flags)
    found = [name for name, module in model.named_modules() if name.endswith("shortcut_dropout") and drops(module)]
    assert len(found) == shortcuts
    batch = pairs(tasks.setup_task(args))
    assert torch.equal(logits(model, batch), logits(model, batch)) == (shortcuts == 0)


def test_retained_dropout_of_the_command(sas_checkpoint: Path, corpus: Path, generate: Command) -> None:
    """Each seed gives other scores, and none without the flag."""
    few = ["--gen-subset", "valid", "--num-shards", 4, "--beam", 1]
    retained = ["--retain-dropout", "--retain-dropout-modules", " ".join(STACKS)]
    found = [
        generate(sas_checkpoint, *few, "--seed", seed, *flags).hypotheses for flags in ([], retained) for seed in (1, 2)
    ]
    assert found[0] == found[1] != found[2] != found[3]


# --- trained, saved and loaded in Python ---------------------------------------------------------------------------


@archs
def test_models_trained_in_python_load_as_an_ensemble_with_their_task(arch: str, corpus: Path, tmp_path: Path) -> None:
    files, trained = [], []
    for seed in (1, 2):
        training = {"optimizer": "adam", "lr": [0.01], "batch_size": 8, "cpu": True, "seed": seed}
        args = options.get_args(str(corpus), arch=arch, criterion="label_smoothed_cross_entropy", **training)
        for name, value in {"label_smoothing": 0.1, "report_accuracy": False, "adam_betas": "(0.9, 0.98)"}.items():
            setattr(args, name, value)
        cfg = convert_namespace_to_omegaconf(args)
        task = tasks.setup_task(cfg.task)
        torch.manual_seed(seed)
        model = task.build_model(cfg.model)
        trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
        for _ in range(2):
            trainer.train_step([pairs(task)])
        trainer.consolidate_optimizer()
        files.append(str(tmp_path / f"{seed}.pt"))
        trainer.save_checkpoint(files[-1], {"train_iterator": {"epoch": 1}, "val_loss": None})
        trained.append(model.eval())

    models, loaded, task = checkpoint_utils.load_model_ensemble_and_task(files, arg_overrides={"data": str(corpus)})
    batch = pairs(task)
    assert not torch.equal(logits(trained[0], batch), logits(trained[1], batch))
    for model, expected in zip(models, trained, strict=True):
        assert type(model) is ResidualTransformerModel
        assert model.args.residual == ARCHS[arch] and described(model) == described(expected)
        assert torch.equal(logits(model.eval(), batch), logits(expected, batch))
    assert loaded.model.arch == arch and loaded.task.data == str(corpus)
    generated = task.inference_step(task.build_generator(models, loaded.generation), models, batch)
    assert len(generated) == 8 and all(hypotheses[0]["tokens"].numel() for hypotheses in generated)

    # A state and a task at hand, and a state of before fairseq had configs.
    state = checkpoint_utils.load_checkpoint_to_cpu(files[0])
    old = {"model": state["model"], "args": argparse.Namespace(**vars(args))}
    for given in (state, old):
        (model,), _, same = checkpoint_utils.load_model_ensemble_and_task(files[:1], task=task, state=given)
        assert same is task
        assert torch.equal(logits(model.eval(), batch), logits(trained[0], batch))


# --- online back-translation ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def monolingual(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny corpus as online back-translation wants it: a training set per language, one dictionary."""
    folder = tmp_path_factory.mktemp("monolingual")
    shutil.copy(corpus / "dict.en.txt", folder / "dict.txt")
    for language in ("en", "xx"):
        (folder / language).mkdir()
        for suffix in ("bin", "idx"):
            shutil.copy(corpus / f"train.en-xx.{language}.{suffix}", folder / language / f"train.{suffix}")
            shutil.copy(corpus / f"valid.en-xx.{language}.{suffix}", folder / f"valid.en-xx.{language}.{suffix}")
    return folder


def back_translation(data: Path, arch: str, **given: Any) -> tuple[Any, Any]:
    languages = {"mono_langs": "en,xx", "valid_lang_pairs": "en-xx"}
    args = options.get_args(
        str(data), task="online_backtranslation", arch=arch, share_all_embeddings=True, **languages, **given
    )
    return built(args)


def monolingual_batch(task: Any, count: int = 6) -> dict[str, Any]:
    task.load_dataset("train")
    dataset = task.dataset("train")
    return dataset.collater([dataset[number] for number in dataset.ordered_indices()[-count:]])


def language(task: Any, name: str) -> int:
    return task.dictionary.index(f"__{name}__")


@archs
def test_back_translation_adds_language_tokens(arch: str, monolingual: Path, corpus: Path) -> None:
    """The dictionary has none: the task extends it, and the embeddings of the model with it."""
    before = len(tasks.setup_task(options.get_args(str(corpus))).source_dictionary)
    task, model = back_translation(monolingual, arch)
    assert [task.dictionary[index] for index in range(before, before + 3)] == ["<mask>", "__en__", "__xx__"]
    assert len(task.dictionary) == before + 3
    for table in (model.encoder.embed_tokens, model.decoder.embed_tokens, model.decoder.output_projection):
        assert table.weight.shape == (before + 3, 64)
    assert model.args.residual == ARCHS[arch]


@archs
def test_a_sample_is_back_translated(arch: str, monolingual: Path) -> None:
    task, model = back_translation(monolingual, arch)
    model.eval()
    sample = monolingual_batch(task)["en-BT"]
    english, target = sample["net_input"]["src_tokens"].clone(), sample["target"].clone()
    assert set(english[:, 0].tolist()) == {language(task, "en")}
    task.backtranslate_sample(sample, "en", "xx")
    generated, lengths = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
    assert set(generated[:, 0].tolist()) == {language(task, "xx")}
    assert torch.equal(sample["target"], target)
    assert generated.size(1) == lengths.max() and (lengths > 2).all()
    for row, length in zip(generated, lengths, strict=True):
        assert row[length - 1] == task.dictionary.eos()
        assert (row[length:] == task.dictionary.pad()).all() and not (row[:length] == task.dictionary.pad()).any()


@pytest.mark.parametrize(("bt", "dae"), [("1", "1"), ("0", "1"), ("1", "0")])
@archs
def test_a_step_of_back_translation_learns(arch: str, bt: str, dae: str, monolingual: Path) -> None:
    task, model = back_translation(monolingual, arch, lambda_bt=bt, lambda_dae=dae, lr=[0.01])
    criterion = task.build_criterion(argparse.Namespace(criterion="label_smoothed_cross_entropy", label_smoothing=0.1))
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.backward = lambda loss: loss.backward()
    loss, size, logged = task.train_step(monolingual_batch(task), model, criterion, optimizer, update_num=0)
    optimizer.step()
    assert loss > 0 and size > 0 and model.training
    assert ("bt_loss" in logged, "dae_loss" in logged) == (bt == "1", dae == "1")
    for name, value in model.named_parameters():
        if not name.endswith("k_proj.bias"):
            assert not torch.equal(value, before[name]), name


@archs
def test_generation_into_the_other_language(arch: str, monolingual: Path) -> None:
    task, model = back_translation(monolingual, arch)
    batch = pairs(task, count=5)
    assert set(batch["net_input"]["src_tokens"][:, 0].tolist()) == {language(task, "en")}
    assert task.get_bos_token_from_sample(batch) == language(task, "xx")
    found = task.generate(batch, model)
    assert len(found) == 5 and not model.training
    for hypotheses in found:
        assert hypotheses[0]["tokens"][-1] == task.dictionary.eos()
        assert hypotheses[0]["positional_scores"].isfinite().all()


@archs
def test_online_back_translation_of_the_command(arch: str, monolingual: Path, cli: Command, tmp_path: Path) -> None:
    """fairseq-train trains and validates; what it saves loads."""
    flags = "--task online_backtranslation --mono-langs en,xx --valid-lang-pairs en-xx --share-all-embeddings"
    flags += " --optimizer adam --lr 0.01 --criterion label_smoothed_cross_entropy --label-smoothing 0.1"
    flags += " --batch-size 16 --max-update 3 --no-epoch-checkpoints --log-format json --log-interval 1"
    done = cli("fairseq-train", monolingual, *flags.split(), "--arch", arch, "--save-dir", tmp_path)
    assert '"train_num_updates": "3"' in done.output and '"valid_loss"' in done.output
    assert "bt_loss" in done.output and "dae_loss" in done.output
