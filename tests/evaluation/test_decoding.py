"""Decoding: the command, its log, and the form of the hypotheses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.cli import children
from fairseq_resid.data.text.folder import Corpus
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.settings import Settings
from fairseq_resid.scoring import decoding
from fairseq_resid.scoring.generated import translate
from fairseq_resid.scoring.task import ScoringJob
from fairseq_resid.scoring.translation import TRANSLATION
from support.evaluation import BIN

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


def test_command_uses_relative_plugin_path_as_in_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert children.user_dir() == "fairseq_resid"
    monkeypatch.chdir(tmp_path)
    assert children.user_dir() == str(ROOT / "fairseq_resid")
    (tmp_path / "fairseq_resid").mkdir()  # a different package of the same name
    assert children.user_dir() == str(ROOT / "fairseq_resid")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert children.program("fairseq-generate") == str(BIN / "fairseq-generate")
    monkeypatch.setenv("PATH", str(BIN))
    assert children.program("fairseq-generate") == "fairseq-generate"


def test_sentence_without_a_hypothesis_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("D-0\t-1\ta\nD-2\t-1\tb\n")
    with pytest.raises(ChildProcessError, match="no hypothesis for sentence 1"):
        decoding.read_hypotheses(log)


@pytest.mark.parametrize(
    "form, decoded, restored",
    [
        ("plain", "It 's a 'b' &quot;", "It 's a 'b' &quot;"),
        ("moses", 'It \'s a " test " , see ?', 'It\'s a "test", see?'),
        ("escaped", 'It \'s a " test " & [ x ]', "It &apos;s a &quot; test &quot; &amp; &#91; x &#93;"),
    ],
)
def test_translation_is_restored_to_the_form_of_the_corpus(
    form: str, decoded: str, restored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq-generate joins subwords; corpus.json determines how tokens and escapes are restored."""
    data = tmp_path / "data"
    data.mkdir()
    told = {"name": "c", "source": "vi", "target": "en", "restore": {"post_process": "sentencepiece"}}
    text = {"form": form, "normalize": "none"}
    (data / "corpus.json").write_text(json.dumps({**told, "bleu_tokenize": "13a", "text": text}))
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.last.touch()

    def decode(words: list[str], log: Path, *_: Any) -> None:
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"D-1\t-0.5\t\nD-0\t-0.25\t{decoded}\n")

    monkeypatch.setattr(decoding, "decode", decode)
    corpus = Corpus.read(data)
    (data / "ref").mkdir()
    corpus.reference("test").write_text("a\nb\n")
    job = ScoringJob(run, TRANSLATION, corpus, "test", "transformer", 1, True, Settings())
    assert translate(job, "last") == [restored, ""]
    assert (tmp_path / "run" / "decode" / "test.last.hyp").read_text() == f"{restored}\n\n"
