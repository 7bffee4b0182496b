"""A checkpoint that does not fit is refused in one short line that names the cause."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid.fairseq_patches import UserError
from fairseq_resid.models import ResidualTransformerModel
from support.models import DICT, TASK, build, copied, dictionary, stock

Command = Callable[..., Any]
LONGEST = 300  # characters of a message, without the name of the file


def refusal(model: Any, weights: dict[str, torch.Tensor]) -> str:
    with pytest.raises(UserError) as refused:
        model.load_state_dict(weights)
    message = str(refused.value)
    assert len(message) < LONGEST and "\n" not in message
    return message


def test_other_size_is_named() -> None:
    message = refusal(build(encoder_ffn_embed_dim=32), copied(build()))
    assert message == (
        "the checkpoint does not fit the model: encoder.layers.0.fc1.weight has the shape [128, 64] in the checkpoint "
        "and [32, 64] in the model (12 such tensors)"
    )


def test_other_number_of_layers_is_named() -> None:
    message = refusal(build(encoder_layers=5, decoder_layers=1), copied(build(encoder_layers=3)))
    assert message == (
        "the checkpoint does not fit the model: the checkpoint has 3 encoder layers and the model 5; "
        "the checkpoint has 2 decoder layers and the model 1"
    )


def test_other_structure_is_named() -> None:
    message = refusal(build(residual="rskip_ln", encoder_layers=6), copied(build(residual="sandwich_ln")))
    assert message.startswith(
        "the checkpoint does not fit --residual rskip_ln: the checkpoint has 2 encoder layers and"
    )
    assert "; the checkpoint lacks encoder.layers.0.self_attn_residual." in message
    assert "; the model lacks encoder.layer_norm.weight (" in message and message.endswith(" such tensors)")


def test_other_dictionary_is_named() -> None:
    task = type(TASK)(source_dictionary=dictionary(20), target_dictionary=dictionary(20))
    message = refusal(build(task=task), copied(build()))
    assert message == (
        f"the checkpoint does not fit the data: its dictionary has {len(DICT)} entries and that of the data 24 "
        "(encoder.embed_tokens.weight)"
    )


def test_misfit_of_a_stock_model_is_named() -> None:
    message = refusal(stock(encoder_layers=1), copied(stock()))
    assert "the checkpoint has 2 encoder layers and the model 1" in message


def test_training_names_the_misfit(sas_checkpoint: Path, train: Command, tmp_path: Path) -> None:
    refused = train(tmp_path, "--residual", "post_ln", "--finetune-from-model", sas_checkpoint, check=False)
    file = f"fairseq_resid: error: {sas_checkpoint}: "
    assert refused.code == 1 and refused.error.startswith(
        f"{file}cannot be loaded: the checkpoint does not fit --resid"
    )
    assert "the model lacks encoder.layers.0.self_attn_residual." in refused.error
    assert len(refused.error) < len(file) + LONGEST


@pytest.mark.parametrize(("stack", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
def test_pruning_one_stack_only_is_refused(stack: str, other: str, sas_checkpoint: Path, generate: Command) -> None:
    """fairseq would drop every layer of the other stack."""
    overrides = {f"{stack}_layers_to_keep": "0"}
    refused = generate(sas_checkpoint, "--model-overrides", str(overrides), check=False)
    cause = f"{stack}_layers_to_keep 0: fairseq would drop all {other} layers; give {other}_layers_to_keep too"
    assert refused.code == 1 and cause in refused.error and refused.error.endswith("for example 0,1")
    assert len(refused.error) < len(str(sas_checkpoint)) + LONGEST
    both = {**overrides, f"{other}_layers_to_keep": "0,1"}
    assert generate(sas_checkpoint, "--model-overrides", str(both)).hypotheses


def test_missing_folder_of_a_hub_model_is_named(sas_checkpoint: Path, tmp_path: Path, corpus: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=f"^{missing}: no such file or folder$"):
        ResidualTransformerModel.from_pretrained(str(missing), "checkpoint_last.pt", str(corpus))
    with pytest.raises(ValueError, match=f"^{missing}: no such file or folder$"):
        ResidualTransformerModel.from_pretrained(str(sas_checkpoint.parent), "checkpoint_last.pt", str(missing))
    shutil.copytree(sas_checkpoint.parent, missing)
    with pytest.raises(ValueError, match=f"{missing}/nosuch.pt"):
        ResidualTransformerModel.from_pretrained(str(missing), "nosuch.pt", str(corpus))
