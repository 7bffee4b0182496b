"""CTranslate2: log probabilities and translations equal fairseq's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fairseq_resid.export.engine import Search
from support.engines import as_words, differences, exported, generated, need, speaking, worst_difference
from support.models import PAD, build, sentences, shaken

from .test_folding import FOLDING, SETTINGS

ENGINE = "ctranslate2"
pytestmark = [need(ENGINE), pytest.mark.once]


@pytest.mark.parametrize("name", FOLDING)
def test_log_probabilities_equal_those_of_fairseq(name: str, tmp_path: Path) -> None:
    model = shaken(build(residual=name, **FOLDING[name][0]), 7, 0.1)
    assert worst_difference(exported(ENGINE, model, tmp_path), model) < 2e-5


@pytest.mark.parametrize("name", SETTINGS)
def test_engine_supports_fairseq_setting(name: str, tmp_path: Path) -> None:
    settings, task = SETTINGS[name]
    model = shaken(build(task=task, **settings), 7, 0.1)
    assert worst_difference(exported(ENGINE, model, tmp_path, task), model, task) < 2e-5


@pytest.mark.parametrize("beam", [1, 4])
def test_padding_is_never_generated(beam: int, tmp_path: Path) -> None:
    """fairseq forbids <pad>, but includes its probability in the normalisation."""
    model = speaking()
    with torch.no_grad():
        model.decoder.output_projection.weight[PAD, 0] = 9
    sources = sentences(8, (4, 6, 8))
    found = exported(ENGINE, model, tmp_path).translate(as_words(sources), Search(beam, 1.0, 0, 6))
    expected = generated(model, sources, Search(beam, 1.0, 0, 6))
    assert [len(each) for each in found] == [1, 1, 1]
    assert all("<pad>" not in each[0].tokens for each in found)
    if beam == 1:
        assert [each[0].tokens for each in found] == [each[0][0] for each in expected]


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16", "bfloat16"])
def test_quantised_models_are_close_and_smaller(quantization: str, tmp_path: Path) -> None:
    model = build(residual="deep_norm", share_all_embeddings=quantization == "int8")
    whole, small = tmp_path / "float32", tmp_path / "quantised"
    exported(ENGINE, model, whole)
    engine = exported(ENGINE, model, small, quantization=quantization)
    assert 0 < differences(engine, model).mean() < 0.4  # with other weights: above 1.5
    assert (small / "model.bin").stat().st_size < 0.75 * (whole / "model.bin").stat().st_size
