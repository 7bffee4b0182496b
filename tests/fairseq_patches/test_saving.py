"""Numbered checkpoints are saved at every interval, also where an epoch ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_resid.runs.run import Run

# The 301 pairs are six updates, so updates 6 and 12 are the last of their epochs.
SETTINGS = ("--batch-size", 64, "--max-update", 12, "--save-interval-updates")


def test_no_numbered_checkpoint_is_missing(train: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, *SETTINGS, 3)
    names = ["checkpoint_1_3.pt", "checkpoint_1_6.pt", "checkpoint_2_9.pt", "checkpoint_2_12.pt"]
    assert [file.name for file in Run(tmp_path).numbered("update")] == names


def test_epoch_checkpoints_are_as_in_fairseq(train: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, *SETTINGS, 6, without=("--no-epoch-checkpoints",))
    run = Run(tmp_path)
    assert [file.name for file in run.numbered("epoch")] == ["checkpoint1.pt", "checkpoint2.pt"]
    assert not run.numbered("update")
