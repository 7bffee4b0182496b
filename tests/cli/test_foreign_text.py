"""Control characters and markup in foreign names and text never reach a terminal or a page unescaped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_resid.__main__ import main
from fairseq_resid.cli.progress import Progress
from fairseq_resid.data.text import preparation
from fairseq_resid.data.text.folder import CORPUS
from fairseq_resid.foreign import CONTROL
from fairseq_resid.study import plan, results, tables
from support import mirror, strange_folders, studies
from support.scored_runs import data_folder, evaluated

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
ESCAPE = "\x1b[31m\x1b]0;title\x07\u202e"
SHOWN = r"\x1b[31m\x1b]0;title\x07\u202e"


def assert_plain(capsys: Capture, times: int = 1) -> None:
    """Assert that the output shows the escape sequence as text."""
    said = "".join(capsys.readouterr()).replace("\\\\", "\\").replace("\\[", "[")  # Markdown's own escapes
    assert said.count(SHOWN) >= times and not CONTROL.search(said.replace("\n", ""))


@pytest.mark.parametrize("words", ["table RUN", "table RUN --markdown", "card RUN", "compare RUN OTHER"])
def test_results_from_others_are_shown_escaped(words: str, tmp_path: Path, capsys: Capture) -> None:
    data = data_folder(tmp_path / "data")
    run, other = (evaluated(data, name, 0.7, corpus=ESCAPE, architecture=ESCAPE) for name in ("a", "b"))
    assert main(words.replace("RUN", str(run)).replace("OTHER", str(other)).split()) == 0
    assert_plain(capsys)


def test_folder_names_are_shown_escaped_in_errors(tmp_path: Path, capsys: Capture) -> None:
    for words in ("card", "curves", "attention", "evaluate", "study", "translate"):
        assert main([words, str(tmp_path / ESCAPE)]) == 2
        assert_plain(capsys)


def test_image_classes_are_shown_escaped(tmp_path: Path, capsys: Capture) -> None:
    raw = mirror.images(tmp_path / "raw", (f"cat{ESCAPE}", "dog"))
    words = ["custom", "--raw", str(raw), "--out", str(tmp_path / f"made{ESCAPE}"), "--valid", "3", "--workers", "1"]
    assert main(["prepare-images", *words]) == 0
    assert_plain(capsys)
    assert main(["prepare-images", *words]) == 0  # it already exists
    assert_plain(capsys)


def test_corpus_text_and_names_are_shown_escaped(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / f"out{ESCAPE}"
    (out / "ref").mkdir(parents=True)
    record = {**strange_folders.CORPUS_RECORD, "name": ESCAPE, "differences": [ESCAPE], "unverified": [ESCAPE]}
    (out / CORPUS).write_text(json.dumps(record))
    for language in ("en", "xx"):
        (out / "ref" / f"test.{language}").write_text(f"a {ESCAPE}\n")
    preparation._show_result(out, show=True)
    assert_plain(capsys, 4)


def test_progress_shows_names_escaped(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("fairseq_resid.cli.progress.EVERY", 0.0)
    with Progress(f"extract {ESCAPE}", 2, "lines") as progress:
        progress.advance(1, f"of {ESCAPE}")
    assert_plain(capsys, 2)


def test_title_and_machine_of_a_study_are_escaped(tmp_path: Path) -> None:
    file = studies.written(tmp_path, studies.SMALL.replace("title: A trial", 'title: "<script>x</script> *a*"'))
    trial = plan.read_study(file)
    notes = studies.all_kept(tmp_path / "trial", trial)
    page = tables.markdown(results.build_results(trial, notes, tmp_path / "trial"))
    assert page.startswith("# &lt;script>x&lt;/script> \\*a\\*\n")
