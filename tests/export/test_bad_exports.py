"""A missing, truncated or mismatched file of an export is reported in one line that names the file or folder."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from fairseq_resid import records
from fairseq_resid.evaluation import evaluate, translate
from fairseq_resid.export.engine import RECORD, Text
from fairseq_resid.export.translator import Translator
from support.engines import described, exported, need
from support.models import build

from .test_onnx import SMALL

pytestmark = pytest.mark.once
TEXT = Text("en", "xx", post_process="subword_nmt", model="bpe.codes")
FILES = {  # of each engine: weights, vocabulary
    "ctranslate2": ("model.bin", "shared_vocabulary.json"),
    "onnx": ("decoder_step.onnx", "target_vocabulary.json"),
    "huggingface": ("model.safetensors", "vocab.json"),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=need(name)) for name in FILES])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export whose folder has the name of the engine; tests must not change it."""
    model, out = build(residual="post_ln", **SMALL), tmp_path_factory.mktemp("made") / request.param
    exported(request.param, model, out)
    (out / "bpe.codes").write_text("#version: 0.2\nw 1</w>\n")
    records.write(out / RECORD, described(request.param, model, TEXT))
    assert isinstance(Translator(out).translate("w1 w2"), str)
    return out


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the export, which a test may change."""
    return Path(shutil.copytree(made, tmp_path / made.name))


@pytest.fixture
def error_of(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs a command, which must fail with one line, and returns this line."""

    def run(main: Callable[..., int], *argv: Any) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w1 w2\n")))
        assert main([str(each) for each in argv]) == 2
        out, error = capfd.readouterr()
        assert out == "" and error.count("\n") == 1 and ": error: " in error, error
        return error

    return run


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@need("huggingface")
@pytest.mark.parametrize("made", ["huggingface"], indirect=True)
@pytest.mark.parametrize("layers", [0, 2])
def test_weights_that_do_not_match_config_json_are_refused(layers: int, folder: Path) -> None:
    """transformers initialises missing weights at random and only logs a report of many lines."""
    change(folder / "config.json", encoder_layers=layers)
    command = [sys.executable, "-m", "fairseq_resid", "translate", folder]
    done = subprocess.run(command, input="w1 w2\n", capture_output=True, text=True, cwd=ROOT)
    (error,) = done.stderr.splitlines()
    assert done.returncode == 2 and f"error: {folder / 'model.safetensors'}: model.encoder.layers." in error


def test_data_folder_of_other_languages_is_refused(folder: Path, corpus: Path, error_of: Any) -> None:
    change(folder / RECORD, text={**json.loads((folder / RECORD).read_text())["text"], "source": "de"})
    assert f"{corpus / 'corpus.json'}: en and xx, but" in error_of(evaluate.main, folder, "--data", corpus)


def test_export_json_of_a_later_version_is_refused(folder: Path, error_of: Any) -> None:
    change(folder / RECORD, format=2)
    assert f"{folder / RECORD}: format 2: this version reads format 1" in error_of(translate.main, folder)
