"""Training with two processes equals training with one; a resumed run equals an uninterrupted one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.runs import launch
from support.ports import free_port
from support.trainings import SETTINGS, assert_same_state, by_hand, launch_here, launched, updates

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
Command = Callable[..., Any]

SAS, DROPOUT_SHORTCUT = ["--arch", "transformer_sas_tiny"], ["--residual", "dropout_shortcut"]


class Numbers(torch.utils.data.Dataset[int]):
    """The examples 0, 1, 2, ..."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("before", "after", "done"), [(2, 1, 5), (1, 2, 6), (4, 2, 3), (2, 4, 4), (3, 3, 2)])
def test_changing_process_count_uses_every_batch_once_per_epoch(before: int, after: int, done: int) -> None:
    """Together, the batches before and after the stop contain every example of the 43 batches of two exactly once."""
    batches = [[2 * number, 2 * number + 1] for number in range(43)]

    def iterators(shards: int) -> list[Any]:
        return [EpochBatchIterator(Numbers(), list, batches, 3, shards, shard) for shard in range(shards)]

    seen: list[int] = []
    states = []
    for iterator in iterators(before):
        epoch = iterator.next_epoch_itr()
        for _ in range(done):
            seen += next(epoch)
        states.append(iterator.state_dict())
    for iterator in iterators(after):
        iterator.load_state_dict(states[0])
        for items in iterator.next_epoch_itr():
            seen += items
    assert sorted(seen) == list(range(86))


def test_position_in_epoch_is_kept_as_a_fraction(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="fairseq_resid.fairseq_patches")

    def iterator(count: int, shards: int = 1) -> Any:
        return EpochBatchIterator(Numbers(), list, [[number] for number in range(count)], 3, shards, 0)

    before = iterator(40)
    epoch = before.next_epoch_itr()
    for _ in range(10):
        next(epoch)
    state = before.state_dict()
    after = iterator(80, 2)
    after.load_state_dict(state)
    assert after.iterations_in_epoch == 10 and "25.0% of the epoch" in caplog.text
    for _ in range(29):
        next(epoch)
    few = iterator(4)
    few.load_state_dict(before.state_dict())  # 39 of 40 rounds to the end of the epoch
    assert (few.epoch, few.iterations_in_epoch) == (2, 0)
    old = {key: value for key, value in state.items() if key not in ("processes", "batches")}
    after.load_state_dict(old)
    assert after.iterations_in_epoch == 10


def start(corpus: Path, *flags: object) -> subprocess.Popen[str]:
    command = [str(BIN / "fairseq-train"), str(corpus), "--user-dir", str(ROOT / "fairseq_resid"), *SETTINGS]
    return subprocess.Popen(
        [*command, *map(str, flags)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def exact_losses(folder: Path) -> list[float]:
    """Return the training loss up to every saved update, unrounded (the log rounds to three digits)."""
    losses = []
    for file in sorted(folder.glob("checkpoint_*_*.pt"), key=lambda file: int(file.stem.split("_")[-1])):
        meters = torch.load(file, weights_only=False)["extra_state"]["metrics"]["train"]
        meter = next(meter for _, key, _, meter in meters if key == "loss")
        losses.append(float(meter["sum"]) / float(meter["count"]))
    return losses


def by_torchrun(command: list[str], port: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return one torchrun command, which starts both processes."""
    torchrun = [str(BIN / "torchrun"), "--nproc-per-node", "2", "--master-port", str(port), "--no-python", "--"]
    return [([*torchrun, *command], {})]


def by_srun(command: list[str], port: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return two commands with the environment variables of a Slurm step."""
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "here", "SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0"}
    return [(command, {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in (0, 1)]


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe without dropout for two processes with 14 pairs each. An epoch has 301 pairs in 22 batches."""
    batches = "--dropout 0 --batch-size 14 --required-batch-size-multiple 1 --distributed-world-size 2"
    settings = [*SETTINGS[2:], *batches.split(), "--max-epoch", "1", "--save-interval-updates", "1", "--seed", "3"]
    kept = [word for word in settings if word not in ("--log-format", "json")]
    file = tmp_path_factory.mktemp("recipe") / "mine.txt"
    file.write_text(shlex.join([str(corpus), *kept]) + "\n")
    return file


def wait(commands: list[tuple[list[str], dict[str, str]]], path: str) -> list[str]:
    """Run commands in parallel until all have finished; return their outputs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": path}
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen(command, env={**environment, **more}, **both) for command, more in commands]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "".join(text[-3000:] for text in outputs)
    return outputs


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the run folder and the log of a training run with one process and --update-freq 2."""
    run = tmp_path_factory.mktemp("alone")
    assert "processes × batch-size × update-freq = 1 × 14 × 2 = 28 examples" in launch_here(recipe, run)
    return run, (run / "train.log").read_text()


@pytest.mark.parametrize("start", [by_torchrun, by_srun, by_hand])
def test_two_processes_equal_one_with_same_effective_batch(
    start: Any, recipe: Path, alone: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of batches in an epoch does not depend on the number of processes.

    Rank r of 2 uses batches r, r + 2, r + 4, ...; one process with --update-freq 2 uses (0, 1), (2, 3), .... Update k
    sees the same 28 pairs. Only the order of summation differs.
    """
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (tmp_path / "scontrol").chmod(0o755)
    run = tmp_path / "two"
    output = "".join(wait(start(launched(recipe, run), free_port()), f"{tmp_path}:{os.environ['PATH']}"))
    assert output.count("effective batch processes × batch-size × update-freq = 2 × 14 × 1 = 28 examples") == 1
    assert output.count("two: CPU, 2 processes; ") == 1 and (run / "train.rank1.log").is_file()

    one = updates(alone[1])
    two = updates((run / "train.log").read_text())
    assert len(one) == len(two) == 11
    for first, second in zip(one, two, strict=True):
        for key in ("num_updates", "bsz", "wpb"):
            assert first[key] == second[key]
        assert float(first["loss"]) == pytest.approx(float(second["loss"]), abs=2e-3)
    losses = exact_losses(alone[0])
    assert len(set(losses)) == 11
    assert exact_losses(run) == pytest.approx(losses, rel=1e-5)
    record = json.loads((run / "run.json").read_text())
    assert record["finished"] and record["plan"]["processes"] == 2 and record["plan"]["effective batch"] == 28
    assert not [word for word in record["command"] if "rank" in word or "init-method" in word]
    for again, _ in by_hand(launched(recipe, run), free_port()):
        assert launch.main(again[4:]) == 0
    assert capsys.readouterr().out.count("already trained") == 1


@pytest.mark.parametrize(
    ("flags", "stop", "epoch"),
    [(SAS, 5, 1), (SAS, 25, 2), (["--residual", "rskip_ln", "--update-freq", "2"], 5, 1), (DROPOUT_SHORTCUT, 5, 1)],
    ids=["sas", "sas in epoch 2", "rskip_ln", "dropout_shortcut"],
)
def test_resuming_mid_epoch_is_bitwise_equal(
    flags: list[str], stop: int, epoch: int, train: Command, tmp_path: Path
) -> None:
    """An epoch has 301 pairs in 20 batches, and many of the pairs have the same length.

    fairseq-fixed seeds its batching with the epoch in which a process starts. Without our patch, resuming in epoch 2
    would build different batches: some pairs would repeat in that epoch and others would be skipped.
    """
    same = [*flags, "--dropout", 0.2]
    train(tmp_path / "whole", *same, "--max-update", stop + 17)
    train(tmp_path / "parts", *same, "--max-update", stop)
    stopped = torch.load(tmp_path / "parts" / "checkpoint_last.pt", weights_only=False)["extra_state"]["train_iterator"]
    assert stopped["epoch"] == epoch and 0 < stopped["iterations_in_epoch"] < 19
    resumed = train(tmp_path / "parts", *same, "--max-update", stop + 17)
    assert "Loaded checkpoint" in resumed.output and int(updates(resumed.output)[0]["num_updates"]) == stop + 1
    assert_same_state(tmp_path / "whole" / "checkpoint_last.pt", tmp_path / "parts" / "checkpoint_last.pt")


def test_killed_training_resumes_bitwise_equal(corpus: Path, train: Command, tmp_path: Path) -> None:
    """The run is killed shortly after its first checkpoint, at update 20 of an epoch of 38."""
    same = shlex.split("--dropout 0.2 --batch-size 8 --save-interval-updates 20 --save-interval 1000")
    folder = tmp_path / "killed"
    process = start(corpus, *same, "--max-update", 100_000, "--save-dir", folder)
    assert process.stdout is not None
    output, deadline = "", time.monotonic() + 120
    try:
        for line in process.stdout:
            output += line
            if any(int(update["num_updates"]) > 20 for update in updates(line)):
                break
            assert time.monotonic() < deadline, output
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL, output[-3000:]
    assert {file.name for file in folder.glob("*.pt")} == {"checkpoint_1_20.pt", "checkpoint_last.pt"}

    resumed = train(folder, *SAS, *same, "--max-update", 45)
    assert int(updates(resumed.output)[0]["num_updates"]) == 21
    train(tmp_path / "whole", *SAS, *same, "--max-update", 45)
    assert_same_state(tmp_path / "whole" / "checkpoint_last.pt", folder / "checkpoint_last.pt")


def cut_back(run: Path, to: int) -> None:
    """Turn a finished run into a run that was stopped after update `to`."""
    for file in run.glob("checkpoint_*_*.pt"):
        if int(file.stem.split("_")[-1]) > to:
            file.unlink()
    (run / "checkpoint_last.pt").unlink()
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "finished": False}))


@pytest.mark.long
def test_run_resumes_on_different_number_of_processes(recipe: Path, alone: tuple[Path, str], tmp_path: Path) -> None:
    """Two processes, then one, then two train parts of an epoch; the losses equal those of an uninterrupted run."""
    run = tmp_path / "run"
    wait(by_hand(launched(recipe, run), free_port()), os.environ["PATH"])
    cut_back(run, 4)
    output = launch_here(recipe, run)
    assert "resuming with processes × batch-size × update-freq = 1 × 14 × 2 = 28 examples instead of " in output
    assert "2 × 14 × 1 = 28 examples: the same batches in the same order; run.json records both" in output
    cut_back(run, 8)
    wait(by_hand(launched(recipe, run), free_port()), os.environ["PATH"])
    assert exact_losses(run) == pytest.approx(exact_losses(alone[0]), rel=1e-5)
    record = json.loads((run / "run.json").read_text())
    assert record["finished"] and record["plan"]["processes"] == 2
    assert [len(session["changes"]) for session in record["sessions"]] == [0, 1, 1]
    command = [*launched(recipe, run), "--effective-batch", "56"]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert refused.returncode == 2 and "--update-freq was not given, now 4" in refused.stderr
