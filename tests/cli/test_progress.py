"""cli/progress.py and the progress of child processes: the content and timing of log lines."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.cli import children, progress
from fairseq_resid.cli.progress import Progress
from fairseq_resid.data.text import custom, fairseq_preprocess, subwords
from support import mirror
from support.clock import Clock

pytestmark = pytest.mark.once


def test_log_shows_progress_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with Progress("tokenise train", 36_000_000, "pairs", done=1_000_000) as shown:
        for seconds in range(0, 600, 10):
            clock.now = 1000.0 + seconds
            shown.advance(50_000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 19  # one every 30 s, starting after 30 s
    # After 390 s, 40 x 50,000 have been added to the initial million.
    assert lines[12] == "  tokenise train: 3,000,000 of 36,000,000 pairs, 5,128 pairs/s, 1:47:15 left"


def build(folder: Path, train: int) -> list[str]:
    """Make a data folder from `train` training pairs; return the arguments of the command."""
    given: list[object] = ["--name", "made-up", "--source", "en", "--target", "de", "--vocab-size", 300]
    for split, count in (("train", train), ("valid", 20), ("test", 20)):
        for language, text in zip(("en", "de"), mirror.sides(mirror.pairs(count, ("en", "de"), count)), strict=True):
            (folder / f"{split}.{language}").write_text(text)
        given += [f"--{split}", folder / split]
    words = [*map(str, given), "--out", str(folder / "data"), "--workers", "2"]
    assert custom.main(words) == 0
    return words


def test_long_steps_in_other_programs_show_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interval between lines is set to zero."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    for module in (subwords, fairseq_preprocess):
        monkeypatch.setattr(module, "POLL", 0.002)
    # In a child process; other tests run it in this process.
    monkeypatch.setattr(fairseq_preprocess, "children", children)
    build(tmp_path, 8000)
    told = capsys.readouterr().out
    assert re.search(r"\n  read: 16,000 of 16,000 sentences, [\d,]+ sentences/s, 0:00:00 left\n", told)
    assert re.search(r"\n  learn: 0:00:0\d so far\n", told)
    assert re.search(r"\n  fairseq-preprocess, dictionary: 0:00:0[1-9] so far\n", told)
    # The expected size equals the final size of the files.
    size = sum(file.stat().st_size for file in (tmp_path / "data").glob("*.bin"))
    shown = re.findall(r"\n  fairseq-preprocess: (\d+) KB of (\d+) KB, ", told)
    parts = [int(part) for part, _ in shown]
    assert {whole for _, whole in shown} == {f"{size / 1000:.0f}"}
    assert len(set(parts)) > 3 and 0 < max(parts) <= size / 1000 + 1


def test_killed_subword_learning_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If learning runs out of memory, the error is one line and the command can be repeated."""

    def killed(*_: Any) -> Any:
        os._exit(9)

    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr(subwords, "sample", killed)
        build(tmp_path, 300)
    error = capsys.readouterr().err
    assert (
        error.splitlines()[-1]
        == "fairseq-resid prepare custom: error: the process that learned the subwords died (out of memory?)"
    )
    build(tmp_path, 300)
