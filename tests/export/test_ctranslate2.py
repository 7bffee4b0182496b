"""CTranslate2: log probabilities and translations equal fairseq's."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engines import FOLDING, SETTINGS, differences, exported, need, worst_difference
from support.models import build, shaken

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


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16", "bfloat16"])
def test_quantised_models_are_close_and_smaller(quantization: str, tmp_path: Path) -> None:
    model = build(residual="deep_norm", share_all_embeddings=quantization == "int8")
    whole, small = tmp_path / "float32", tmp_path / "quantised"
    exported(ENGINE, model, whole)
    engine = exported(ENGINE, model, small, quantization=quantization)
    assert 0 < differences(engine, model).mean() < 0.4  # with other weights: above 1.5
    assert (small / "model.bin").stat().st_size < 0.75 * (whole / "model.bin").stat().st_size
