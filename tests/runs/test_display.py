"""The progress display of a training run, and the log records that it reads."""

from __future__ import annotations

import pytest

from fairseq_resid.runs.display import Display
from fairseq_resid.runs.training_command import TrainingCommand
from fairseq_resid.runs.training_log import log_record
from support.clock import Clock

Capture = pytest.CaptureFixture[str]

RECORD = '2026-01-02 03:04:05 | INFO | train_inner | {{"epoch": {epoch}, "update": {done}, "loss": "{loss}", '
RECORD += '"wps": "9876.5", "num_updates": "{updates}", "train_wall": "1"}}'


def test_display_shows_training_progress(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    clock = Clock(monkeypatch)
    with Display("run", TrainingCommand.parse(["--max-update", "400", "--max-epoch", "0"])) as shown:
        clock.now += 31
        shown.take("")
        shown.take(RECORD.format(epoch=1, done=0.5, loss=8.5, updates=100))
        clock.now += 31
        shown.take(RECORD.format(epoch=1, done=1.0, loss=7.25, updates=200))
        shown.take('2026-01-02 03:04:05 | INFO | valid | {"epoch": 2, "valid_loss": "6.5", "valid_num_updates": "200"}')
        shown.take("Traceback (most recent call last):")
        clock.now += 31
        shown.take("")
    assert capsys.readouterr().out.splitlines() == [
        "  run: starting",
        "  run: epoch 1, update 200 of 400, loss 7.25, 9,876 tokens/s, 0:01:02 left",
        "  run: epoch 2, update 200 of 400, loss 7.25, valid loss 6.5, 9,876 tokens/s, 0:01:02 left",
    ]


def test_log_records_of_both_versions_are_read() -> None:
    for line in (RECORD.format(epoch=1, done=1, loss=1, updates=3), '{"epoch": 1, "num_updates": "3"}\n'):
        record = log_record(line)
        assert record is not None and record["num_updates"] == "3"
    for line in ("", "{'_name': None}", '{"cut": ', "[1]", "2026-01-02 03:04:05 | INFO | fairseq_cli.train | {'a': 1}"):
        assert log_record(line) is None
