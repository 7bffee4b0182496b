"""Signals during training: a checkpoint is saved, and a resumed run ends like an uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.fairseq_patches import loading, stopping
from support.process_groups import UPDATES, begin, logged, processes_of, start_two, trainer_of, wait_for
from support.trainings import SETTINGS, assert_same_state, launch_here, launched, updates

ROOT = Path(__file__).resolve().parents[2]


def stop(recipe: Path, run: Path, number: signal.Signals, whom: str, after: int) -> tuple[int, str]:
    """Send a signal to the launcher or its group after `after` updates; return the exit code and the output."""
    process = begin(launched(recipe, run))
    wait_for(lambda: logged(run) >= after, process)
    (os.killpg if whom == "group" else os.kill)(process.pid, number)
    output = process.communicate(timeout=120)[0]
    assert processes_of(process.pid) == []
    return process.returncode, str(output)


MORE_STOPS = [(signal.SIGTERM, "launcher"), (signal.SIGTERM, "group"), (signal.SIGHUP, "group")]


@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGINT, "group"), *(pytest.param(*stop, marks=pytest.mark.long) for stop in MORE_STOPS)],
)
def test_signal_saves_checkpoint_and_stops(
    number: signal.Signals, whom: str, recipe: Path, whole: Path, tmp_path: Path
) -> None:
    """A signal to the group also reaches the data loading worker."""
    run = tmp_path / "run"
    code, output = stop(recipe, run, number, whom, 17)
    assert code == 128 + number, output[-3000:]
    assert "Press Ctrl-C again to stop now" in output and "interrupted; the same command resumes" in output
    stopped = loading.load_checkpoint(run / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert f"stopped by {number.name} after update {stopped}" in (run / "train.log").read_text()
    assert 17 <= stopped < UPDATES and not list(run.glob("*.tmp"))
    launch_here(recipe, run)
    assert_same_state(run / "checkpoint_last.pt", whole)


def test_finished_training_makes_no_additional_update(train: Callable[..., Any], tmp_path: Path) -> None:
    """A run that ended in mid-epoch is started again, as if it had been killed right after its last checkpoint."""
    for _ in range(2):
        done = train(tmp_path, "--max-update", 3)
        state = loading.load_checkpoint(tmp_path / "checkpoint_last.pt")
        assert state["optimizer_history"][-1]["num_updates"] == 3 and "done training" in done.output


def test_second_interrupt_stops_at_once_but_second_sigterm_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping._Stop, "received", 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)
    with stopping._handling(stopping._receive):
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), signal.SIGTERM)  # a process gets SIGTERM from Slurm and again from its parent
        except KeyboardInterrupt:  # would end pytest
            pytest.fail("a second SIGTERM must not act like a second Ctrl-C")
        assert stopping._Stop.received == signal.SIGTERM
        stopping._Stop.received = 0
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.signal(signal.SIGINT, before[0]) == signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == before[1]


def test_signal_saves_even_if_a_validation_worker_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sends SIGTERM to all processes of a job, including the worker that loads the validation data."""
    import fairseq_cli.train as program
    from fairseq import checkpoint_utils
    from fairseq.distributed import utils as distributed
    from fairseq.trainer import Trainer

    saved: list[Any] = []

    def lose(*_: Any) -> None:
        raise error

    monkeypatch.setattr(checkpoint_utils, "save_checkpoint", lambda *given: saved.append(given[1:]))
    monkeypatch.setattr(program, "validate_and_save", lose)
    for owner, name in ((program, "train"), (distributed, "call_main"), (Trainer, "_aggregate_logging_outputs")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # restores the wrapped functions afterwards
    stopping.save_when_stopped()
    lost = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    for received, size, error, expected in (
        (15, 1, lost, SystemExit),
        (15, 1, ConnectionResetError(), SystemExit),
        (15, 1, RuntimeError("another"), RuntimeError),
        (15, 2, lost, RuntimeError),
        (0, 1, lost, RuntimeError),
    ):
        monkeypatch.setattr(stopping._Stop, "received", received)
        trainer = SimpleNamespace(data_parallel_world_size=size, get_num_updates=lambda: 9)
        with pytest.raises(expected) as end:
            program.validate_and_save(SimpleNamespace(checkpoint=None), trainer, None, "place")
        assert end.value is error or getattr(end.value, "code", 0) == 143
        assert saved == [(trainer, "place", None)] * (expected is SystemExit)
        saved.clear()


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping._handling(stopping._receive):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_signal_to_one_process_stops_both(recipe: Path, tmp_path: Path) -> None:
    """Both processes stop after the same update, and the resumed run ends like an uninterrupted one."""
    run = tmp_path / "run"
    both = start_two(recipe, run)
    wait_for(lambda: logged(run) >= 27, both[0])
    os.kill(trainer_of(1), signal.SIGTERM)
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [143, 143], "".join(outputs)[-3000:]
    logs = [(run / name).read_text() for name in ("train.log", "train.rank1.log")]
    stopped = loading.load_checkpoint(run / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert f"stopped by SIGTERM after update {stopped}" in logs[0] and stopped >= 27
    for folder in (run, tmp_path / "whole"):
        ends = start_two(recipe, folder)
        outputs = [process.communicate(timeout=300)[0] for process in ends]
        assert [process.returncode for process in ends] == [0, 0], "".join(outputs)[-3000:]
    assert_same_state(run / "checkpoint_last.pt", tmp_path / "whole" / "checkpoint_last.pt")


@pytest.fixture
def own_two(corpus: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a fairseq-train that starts two processes, as on a machine with two GPUs; return it and its log."""
    words = [str(corpus), "--user-dir", str(ROOT / "fairseq_resid"), "--save-dir", str(tmp_path / "run"), *SETTINGS]
    more = "--dropout 0.2 --batch-size 16 --max-update 100000 --distributed-world-size 2 --distributed-backend gloo"
    code = (
        "import sys, torch\ntorch.cuda.device_count = lambda: 2\n"
        f"sys.argv = ['fairseq-train', *{[*words, *more.split(), '--ddp-backend', 'legacy_ddp']!r}]\n"
        "from fairseq_cli.train import cli_main\ncli_main()\n"
    )
    log = tmp_path / "log"
    with log.open("w") as file:
        process = begin([sys.executable, "-c", code], file)
    wait_for(lambda: len(updates(log.read_text())) > 20, process)
    return process, log


@pytest.mark.long
def test_spawned_processes_receive_the_signal(own_two: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    process, log = own_two
    process.terminate()
    assert process.wait(timeout=120) == 143, log.read_text()[-3000:]
    assert processes_of(process.pid) == [] and "stopped by SIGTERM after update" in log.read_text()
    assert loading.load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")["model"]


@pytest.mark.long
def test_spawned_processes_end_if_one_is_killed(own_two: tuple[subprocess.Popen[str], Path]) -> None:
    """One process is killed. The other hangs, as in a collective operation on a GPU, until torch kills it."""
    process, log = own_two
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    killed, stuck = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(stuck, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    assert process.wait(timeout=100) not in (0, 143), log.read_text()[-3000:]
    wait_for_none = time.monotonic() + 30  # data loading workers check for their parent every few seconds
    while processes_of(process.pid) and time.monotonic() < wait_for_none:
        time.sleep(0.5)
    assert processes_of(process.pid) == []
