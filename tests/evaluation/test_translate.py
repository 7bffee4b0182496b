"""`fairseq-resid translate` and Translator: the same translations as fairseq-generate, from raw text, in order."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid.evaluation import translate
from fairseq_resid.evaluation.translate import Translator
from fairseq_resid.files import read_lines
from support.pages import example


@pytest.fixture(scope="module")
def run(sas_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translate") / "run"
    folder.mkdir()
    shutil.copy(sas_checkpoint, folder / "checkpoint_last.pt")
    return folder


@pytest.fixture(scope="module")
def translator(run: Path, corpus: Path) -> Translator:
    return Translator(run, corpus, cpu=True)


@pytest.fixture(scope="module")
def expected(run: Path, corpus: Path, generate: Callable[..., Any]) -> list[str]:
    """Return fairseq-generate's translations of the test set, with the settings of scripts/evaluate.sh."""
    flags = ["--max-len-b", 50, "--post-process", "sentencepiece"]
    found = generate(run / "checkpoint_last.pt", *flags).lines("D")
    return [found[number].split("\t", 1)[1] for number in range(len(found))]


def test_translations_equal_those_of_generate(translator: Translator, corpus: Path, expected: list[str]) -> None:
    assert translator.translate(read_lines(corpus / "ref" / "test.en")) == expected


def test_translate_handles_blank_lines_and_any_order(translator: Translator, corpus: Path, expected: list[str]) -> None:
    lines = read_lines(corpus / "ref" / "test.en")[:6]
    mixed = ["", lines[4], " \t ", lines[0], lines[4], ""]
    assert translator.translate(mixed) == ["", expected[4], "", expected[0], expected[4], ""]
    assert translator.translate([]) == [] and translator.translate(["", ""]) == ["", ""]


@pytest.mark.once
def test_one_str_gives_one_translation(translator: Translator, corpus: Path, expected: list[str]) -> None:
    assert translator.translate(read_lines(corpus / "ref" / "test.en")[0]) == expected[0]
    assert translator.translate("") == ""


def test_command_reads_any_line_ending(
    translator: Translator, corpus: Path, expected: list[str], capsysbinary: Any, monkeypatch: Any
) -> None:
    text = read_lines(corpus / "ref" / "test.en")
    monkeypatch.setattr(translate, "Translator", lambda *_: translator)
    stdin = f"{text[0]}\r\n\n{text[1]}\n{text[2]}".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert translate.main(["run"]) == 0
    assert capsysbinary.readouterr().out.decode() == f"{expected[0]}\n\n{expected[1]}\n{expected[2]}\n"


def test_translate_uses_the_average_if_there_is_one(
    run: Path, corpus: Path, stock_checkpoint: Path, tmp_path: Path
) -> None:
    """The averaged file is a stock model, so the class of the loaded model reveals which file was used."""
    shutil.copy(run / "checkpoint_last.pt", tmp_path)
    shutil.copy(stock_checkpoint, tmp_path / "averaged.pt")
    averaged = Translator(tmp_path, corpus, cpu=True)
    assert type(averaged.hub.models[0]).__name__ == "TransformerModel"
    last = Translator(tmp_path, corpus, "checkpoint_last.pt", cpu=True)
    assert type(last.hub.models[0]).__name__ != "TransformerModel"


@pytest.mark.once
def test_translate_uses_the_text_form_of_the_corpus(run: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "data")
    told = json.loads((corpus / "corpus.json").read_text())
    (tmp_path / "data" / "corpus.json").write_text(json.dumps({**told, "text": {"form": "moses", "normalize": "none"}}))
    moses = Translator(run, tmp_path / "data", cpu=True)
    plain = Translator(run, corpus, cpu=True)
    (line,) = read_lines(corpus / "ref" / "test.en")[:1]
    assert line.endswith(" .")
    (tokens,) = plain.translate([line])
    assert moses.translate([line.removesuffix(" .") + "."]) == [moses.text.target.restore(tokens)]


def test_examples_on_the_export_page_run(run: Path, corpus: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    shutil.copytree(run, "checkpoints/RUN")
    (tmp_path / "data-bin").mkdir()
    shutil.copytree(corpus, "data-bin/DATA")
    known: dict[str, Any] = {}
    exec(example("export.md", "import load"), known)
    rows = ([[1, 5, 6, 2], [7, 8, 9, 2]], [3, 4], [[2, 5, 6, 7], [2, 6, 8, 9]])
    inputs = [torch.tensor(row) for row in rows]
    expected = known["model"](*inputs)[0].log_softmax(-1)
    exec(example("export.md", "quantize_dynamic"), known)
    assert (known["model"](*inputs)[0].log_softmax(-1) - expected).abs().max() < 0.5
