"""Facts about a run for evaluation: data folder, parameter count, architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fairseq_resid.data.text.folder import Corpus
from fairseq_resid.evaluation.job import architecture, count_parameters
from fairseq_resid.fairseq_patches.loading import load_checkpoint
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.trained_on import find_data

pytestmark = pytest.mark.once


def test_data_folder_is_found_from_checkpoint(here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = load_checkpoint(here.last)
    run = Run(here.path.resolve())
    assert find_data(here, state) == Path("data")
    monkeypatch.chdir(tmp_path)
    assert find_data(run, state) == run.path.parent.parent / "data"
    with pytest.raises(ValueError, match=r"trained on data: no such data folder.*--data"):
        find_data(Run(tmp_path), state)


def test_parameter_count_ignores_buffers_and_copies() -> None:
    embedding = torch.zeros(10, 4)
    kept = {
        "encoder.embed_tokens.weight": embedding,
        "encoder.layers.0.fc1.weight": torch.zeros(8, 4),
        "encoder.layers.0.self_attn.out_proj.weight": torch.zeros(4, 4),
    }
    left_out = {
        "decoder.output_projection.weight": embedding,
        "encoder.version": torch.zeros(1),
        "decoder.embed_positions._float_tensor": torch.zeros(1),
        **{
            f"encoder.layers.11.{name}_{kind}": torch.zeros(3)
            for name in ("in_proj", "out_proj", "fc1", "fc2")
            for kind in ("weight", "bias")
        },
    }
    assert count_parameters({**kept, **left_out}) == 40 + 32 + 16


def test_architecture_shows_residual_if_it_is_an_option() -> None:
    assert architecture({"cfg": {"model": {"_name": "transformer_sas", "residual": "sas"}}}) == "transformer_sas"
    option = {"_name": "transformer_resid", "arch": "transformer_resid", "residual": "highway"}
    assert architecture({"cfg": {"model": option}}) == "transformer_resid --residual highway"


def test_corpus_inputs_belong_to_one_subset(here: Run) -> None:
    names = [path.name for path in Corpus.read(Path("data")).inputs("test")]
    assert "test.en-fr.fr.bin" in names and "dict.en.txt" in names and not any("train" in name for name in names)
