"""fairseq used from Python: models built by options.get_args and task.build_model, trained, saved, loaded.

Where fairseq's own model supports the same use, it is the reference.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.transformer import TransformerModel
from fairseq.trainer import Trainer

from fairseq_resid import connections
from fairseq_resid.models import ResidualTransformerModel
from support import structures
from support.fairseq_models import ARCHS, archs, described, logits, pairs

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
def test_named_architecture_can_be_built_from_python(
    arch: str, given: dict[str, Any], implied: dict[str, Any], form: str, corpus: Path
) -> None:
    """get_args applies the architecture, then sets the given values; building a model applies it again."""
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
def test_settings_written_back_equal_those_of_stock(given: dict[str, Any], corpus: Path) -> None:
    """Building a model adds all missing settings to the namespace that it gets, such as that of an old checkpoint."""
    task = tasks.setup_task(options.get_args(str(corpus)))
    size = {"encoder_embed_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1}
    theirs, ours = (argparse.Namespace(**{**size, "decoder_layers": 1, **given}) for _ in range(2))
    expected = TransformerModel.build_model(theirs, task)
    model = ResidualTransformerModel.build_model(ours, task)
    depths = [given.get("encoder_layers", 1), given.get("decoder_layers", 1)]
    mine = {
        "residual": "post_ln",
        "norm": "layer",
        "residual_backend": "eager",
        "final_norm": "none",
        "ffn_init": "default",
    }
    assert vars(ours) == {**vars(theirs), **mine, "residual_depths": depths}
    assert (model.args is model.cfg) == (expected.args is expected.cfg)
    for name in vars(theirs):
        assert getattr(model.args, name) == getattr(expected.args, name), name
    assert len(model.encoder.layers) == ours.encoder_layers


@archs
def test_models_trained_in_python_load_as_ensemble(arch: str, corpus: Path, tmp_path: Path) -> None:
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

    # A caller can pass a task and a state, even a state from before fairseq had configs.
    state = checkpoint_utils.load_checkpoint_to_cpu(files[0])
    old = {"model": state["model"], "args": argparse.Namespace(**vars(args))}
    for given in (state, old):
        (model,), _, same = checkpoint_utils.load_model_ensemble_and_task(files[:1], task=task, state=given)
        assert same is task
        assert torch.equal(logits(model.eval(), batch), logits(trained[0], batch))
