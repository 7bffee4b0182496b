"""Fixtures for tests of training."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import torch

from support.fake_training import FAKE, make_data
from support.process_groups import UPDATES
from support.trainings import SETTINGS, launch_here


@pytest.fixture(scope="session")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe with dropout and epochs of 20 batches of 16. It saves every 15 updates and keeps 3 files."""
    limits = (
        f"--dropout 0.2 --batch-size 16 --max-update {UPDATES} --save-interval-updates 15 --keep-interval-updates 3"
    )
    dropped = ("--log-format", "json", "--num-workers", "0")
    settings = [*(word for word in SETTINGS[2:] if word not in dropped), *limits.split(), "--num-workers", "1"]
    file = tmp_path_factory.mktemp("recipe") / "mine.txt"
    file.write_text(shlex.join([str(corpus), *settings, "--seed", "3"]) + "\n")
    return file


@pytest.fixture(scope="session")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the last checkpoint of an uninterrupted run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    launch_here(recipe, run)
    return run / "checkpoint_last.pt"


@pytest.fixture
def fake_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake fairseq-train that records its arguments, writes a checkpoint, and exits with a chosen code."""
    program = tmp_path / "bin" / "fairseq-train"
    program.parent.mkdir()
    program.write_text(FAKE.replace("FOLDER", str(tmp_path)))
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    torch.save({"update": 9}, tmp_path / "whole.pt")
    monkeypatch.setattr("sys.executable", str(program.parent / "python"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAIRSEQ_RESID_VERBOSE", "")
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path / "data-bin" / "phrasebook")
    return tmp_path
