"""Processes of one training run that die, differ or cannot connect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.fairseq_patches import processes
from support.ports import free_port
from support.process_groups import all_are_whole, begin, logged, processes_of, start_two, trainer_of, wait_for
from support.trainings import by_hand, launched


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_process_ends_the_other_process(rank: int, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = start_two(recipe, run)
    wait_for(lambda: logged(run) >= 27, both[0])
    os.kill(trainer_of(rank), signal.SIGKILL)
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [1, 1], "".join(outputs)[-2000:]
    assert [processes_of(process.pid) for process in both] == [[], []] and all_are_whole(run)


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[BaseException | None]]:
    """Connect processes that have these facts, each in its own thread; return the exception of each, or None."""
    monkeypatch.setattr(processes, "PATIENCE", 3)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)

    def meet(*facts: dict[str, str] | None, port: int | None = None) -> list[BaseException | None]:
        address = f"tcp://127.0.0.1:{port or free_port()}"
        ends: list[BaseException | None] = [None] * len(facts)

        def one(rank: int, mine: dict[str, str]) -> None:
            try:
                processes._meet(mine, "gloo", address, len(facts), rank)
            except SystemExit as end:
                ends[rank] = end

        there = [(rank, mine) for rank, mine in enumerate(facts) if mine is not None]
        threads = [threading.Thread(target=one, args=each) for each in there]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return ends

    return meet


def test_only_processes_with_equal_settings_connect(meeting: Any) -> None:
    assert meeting({"--seed": "1"}, {"--seed": "1"}, {"--seed": "1"}) == [None, None, None]
    for facts, said in (
        ({"--seed": "2"}, "rank 1: settings or data differ from those of rank 0: --seed is 2, but 1 on rank 0"),
        ({"--seed": "1", "data file dict.en.txt": "7 bytes"}, "data file dict.en.txt is 7 bytes, but None on rank 0"),
        ({}, "--seed is None, but 1 on rank 0"),
    ):
        ends = meeting({"--seed": "1"}, facts, {"--seed": "1"})
        assert all(said in str(end) and "rank 1: settings or data differ" in str(end) for end in ends), ends


def test_missing_process_is_reported(meeting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1)
    ends = meeting({"--seed": "1"}, None)
    assert "rank 0 of 2: the processes of this training run could not connect at tcp://127.0.0.1:" in str(ends[0])
    assert "within 1 s: " in str(ends[0]) and "1/2" in str(ends[0])
    ends = meeting(None, {"--seed": "1"})
    assert "rank 1 of 2: the processes of this training run could not connect" in str(ends[1])


def test_processes_compare_shared_settings_and_data(corpus: Path) -> None:
    """Settings that may differ between processes are not compared, but the files of the data folder are."""
    from argparse import Namespace

    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"common": {"seed": 1, "user_dir": "here"}, "task": {"data": str(corpus)}, "none": None})
    facts = processes._facts(cfg)
    assert facts["--seed"] == "1" and "--user-dir" not in facts and "--data" not in facts
    dictionary = corpus / "dict.en.txt"
    assert facts["data file dict.en.txt"] == f"{dictionary.stat().st_size} bytes"
    assert processes._facts({"task": Namespace(data="nowhere", seed=2)}) == {"--seed": "2"}


@pytest.mark.long
def test_processes_with_different_seeds_refuse_to_train(recipe: Path, tmp_path: Path) -> None:
    commands = by_hand(launched(recipe, tmp_path / "run"), free_port())
    both = [begin([*command, "--seed", str(5 + rank)]) for rank, (command, _) in enumerate(commands)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [1, 1]
    said = "rank 1: settings or data differ from those of rank 0: --seed is 6, but 5 on rank 0"
    assert all(said in text for text in outputs)
    assert not list((tmp_path / "run").glob("*.pt"))
