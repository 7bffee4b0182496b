"""Dropout during inference, as in fairseq: nowhere, everywhere, or in modules that --retain-dropout-modules names."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import FairseqDropout

from support.fairseq_models import archs, built, logits, pairs, stock

Command = Callable[..., Any]


def kept(model: torch.nn.Module) -> set[str]:
    """Return the names of the dropouts that are active during inference, with fairseq's name for those of our sites."""
    names = (name for name, module in model.named_modules() if isinstance(module, FairseqDropout) and drops(module))
    return {re.sub(r"(self_attn|encoder_attn|ffn)_residual\.dropout$", "dropout_module", name) for name in names}


def drops(module: torch.nn.Module) -> bool:
    ones = torch.ones(4000)
    return not torch.equal(module(ones), ones)


def prepared(args: argparse.Namespace, **generation: Any) -> Any:
    """Return a model that has been prepared for inference in the same way as by fairseq-generate."""
    _, model = built(args)
    cfg = convert_namespace_to_omegaconf(args)
    for name, value in generation.items():
        setattr(cfg.generation, name, value)
    model.prepare_for_inference_(cfg)
    return model


DROPPING = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}


@archs
def test_inference_has_no_dropout_by_default(arch: str, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch=arch, **DROPPING)
    assert kept(prepared(args)) == set()
    assert kept(prepared(args, retain_dropout=False, retain_dropout_modules=["TransformerEncoder"])) == set()


@archs
def test_dropout_runs_only_in_training(arch: str, corpus: Path) -> None:
    _, model = built(options.get_args(str(corpus), arch=arch, **DROPPING))
    everything = {name for name, module in model.named_modules() if isinstance(module, FairseqDropout)}
    model.train()
    assert len(kept(model)) == len(everything) - 2 * 1 - 2 * 2  # the sites of a layer share one name
    model.eval()
    assert kept(model) == set()


@archs
def test_retain_dropout_keeps_all_dropout(arch: str, corpus: Path) -> None:
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
    [[], STACKS[:1], STACKS + LAYERS, [*BASES, *STACKS, "MultiheadAttention"], "TransformerDecoderLayerBase"],
    ids=str,
)
def test_retained_modules_equal_those_of_stock(names: list[str] | str, corpus: Path) -> None:
    """In Python, fairseq accepts a list; on the command line, it accepts a string and searches it for each name."""
    reference = stock(corpus)
    for module in reference.modules():
        if isinstance(module, FairseqDropout):
            module.p = 0.3
    reference.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    args = options.get_args(str(corpus), arch="transformer_sas_tiny", **DROPPING)
    model = prepared(args, retain_dropout=True, retain_dropout_modules=names)
    assert kept(model) == kept(reference)
    assert bool(kept(model)) == any(name in names for name in [*STACKS, *BASES])


@pytest.mark.parametrize(
    ("names", "inside"),
    [(["ResidualTransformerEncoder"], r"encoder\.dropout_module"), (["ResidualDecoderLayer"], r"decoder\.layers\..*")],
)
def test_our_class_names_retain_dropout_too(names: list[str], inside: str, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch="transformer_sas_tiny", **DROPPING)
    found = kept(prepared(args, retain_dropout=True, retain_dropout_modules=names))
    assert found and all(re.fullmatch(inside, name) and "attn" not in name for name in found)


@pytest.mark.parametrize(
    ("flags", "shortcuts"),
    [
        ({}, 0),
        ({"retain_dropout": True}, 10),
        ({"retain_dropout": True, "retain_dropout_modules": STACKS}, 0),
        ({"retain_dropout": True, "retain_dropout_modules": ["ResidualDecoderLayer"]}, 6),
    ],
    ids=str,
)
def test_shortcut_dropout_obeys_retain_dropout(flags: dict[str, Any], shortcuts: int, corpus: Path) -> None:
    args = options.get_args(str(corpus), arch="transformer_resid_tiny", residual="dropout_shortcut", dropout=0.0)
    model = prepared(args, **flags)
    found = [name for name, module in model.named_modules() if name.endswith("shortcut_dropout") and drops(module)]
    assert len(found) == shortcuts
    batch = pairs(tasks.setup_task(args))
    assert torch.equal(logits(model, batch), logits(model, batch)) == (shortcuts == 0)


def test_fairseq_generate_retains_dropout(sas_checkpoint: Path, corpus: Path, generate: Command) -> None:
    """With the flag, scores depend on the seed; without the flag, they do not."""
    few = ["--gen-subset", "valid", "--num-shards", 4, "--beam", 1]
    retained = ["--retain-dropout", "--retain-dropout-modules", " ".join(STACKS)]
    found = [
        generate(sas_checkpoint, *few, "--seed", seed, *flags).hypotheses for flags in ([], retained) for seed in (1, 2)
    ]
    assert found[0] == found[1] != found[2] != found[3]
