"""cli/progress.py: the content and timing of log lines; the end of a child process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.cli.progress import Progress
from fairseq_resid.data.text import subwords
from support.clock import Clock
from support.preparing import build

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


def test_killed_subword_learning_is_an_error(
    raw_text: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If learning runs out of memory, the command fails and can be repeated."""

    def killed(*_: Any) -> Any:
        os._exit(9)

    with monkeypatch.context() as patch:
        patch.setattr(subwords, "sample", killed)
        assert build(raw_text, tmp_path / "data") == 1
    assert "the process that learned the subwords died (out of memory?)" in capsys.readouterr().err
    assert build(raw_text, tmp_path / "data") == 0
