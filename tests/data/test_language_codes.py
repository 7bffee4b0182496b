"""Language codes with hyphens or dots work in every command, although fairseq splits file names at both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import data_utils

import fairseq_resid.models  # noqa: F401  (patches fairseq)
from fairseq_resid.evaluation import evaluate
from fairseq_resid.evaluation.translate import Translator
from support.preparing import build
from support.trainings import SETTINGS


@pytest.mark.parametrize(
    ("source", "target"), [("zh-Hans", "pt.x"), pytest.param("pt-BR", "pt", marks=pytest.mark.once)]
)
def test_every_command_works(
    source: str, target: str, raw_text: dict[str, Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    """No command is given the languages."""
    data, run = tmp_path / "data", tmp_path / "run"
    for split, prefix in raw_text.items():
        for before, now in (("en", source), ("xx", target)):
            shutil.copy(f"{prefix}.{before}", tmp_path / f"{split}.{now}")
    prefixes = {split: tmp_path / split for split in raw_text}
    assert build(prefixes, data, "--source", source, "--target", target) == 0
    assert data_utils.infer_language_pair(str(data)) == (source, target)
    words = [word for word in SETTINGS if word != "--cpu"]
    saving = ["--save-interval-updates", 1, "--save-dir", run]
    cli("fairseq-train", data, *words, "--batch-size", 64, "--max-update", 2, *saving)
    assert evaluate.main([str(run), "--last", "1", "--subset", "valid", "--cpu"]) == 0
    assert json.loads((run / "results.valid.json").read_text())["sentences"] == 43
    (line,) = (tmp_path / f"valid.{source}").read_text().splitlines()[:1]
    assert Translator(run, cpu=True).translate(line)


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        (["dict.pt-BR.txt", "train.en-pt-BR.en.bin", "train.en-pt-BR.pt-BR.idx"], ("en", "pt-BR")),
        (["dict.pt.txt", "train.pt-BR-pt.pt.idx"], ("pt-BR", "pt")),
        (["test.de-en.de"], ("de", "en")),  # raw text
        (["valid.captions.tsv", "dict.captions.txt"], (None, None)),
    ],
)
def test_languages_are_inferred_from_file_names(names: list[str], pair: tuple[str | None, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert data_utils.infer_language_pair(str(tmp_path)) == pair
