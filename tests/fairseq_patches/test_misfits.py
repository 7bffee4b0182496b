"""A checkpoint that does not fit is refused, naming the cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid.fairseq_patches import UserError
from support.models import build, copied

Command = Callable[..., Any]


def refusal(model: Any, weights: dict[str, torch.Tensor]) -> str:
    with pytest.raises(UserError) as refused:
        model.load_state_dict(weights)
    return str(refused.value)


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
    assert "; the model lacks encoder.layers.0.self_attn_residual." in message and message.endswith(" such tensors)")


def test_training_names_the_misfit(sas_checkpoint: Path, train: Command, tmp_path: Path) -> None:
    refused = train(tmp_path, "--residual", "post_ln", "--finetune-from-model", sas_checkpoint, check=False)
    file = f"fairseq_resid: error: {sas_checkpoint}: "
    assert refused.code == 1 and refused.error.startswith(
        f"{file}cannot be loaded: the checkpoint does not fit --resid"
    )
    assert "the model lacks encoder.layers.0.self_attn_residual." in refused.error


def test_pruning_one_stack_only_is_refused(sas_checkpoint: Path, generate: Command) -> None:
    """fairseq would drop every layer of the other stack."""
    overrides = {"encoder_layers_to_keep": "0"}
    refused = generate(sas_checkpoint, "--model-overrides", str(overrides), check=False)
    cause = "encoder_layers_to_keep 0: fairseq would drop all decoder layers; give decoder_layers_to_keep too"
    assert refused.code == 1 and cause in refused.error
    both = {**overrides, "decoder_layers_to_keep": "0,1"}
    assert generate(sas_checkpoint, "--model-overrides", str(both)).hypotheses
