"""Signals, kills, full disks, lost processes: what was saved is whole, and what goes on ends as if never stopped."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fairseq_resid.models  # noqa: F401  (bridges fairseq)
from fairseq_resid import compat
from fairseq_resid.compat import processes, stopping
from study import test_study
from support.ports import free_port
from training.test_distributed_and_resume import SETTINGS, assert_same_state, by_hand, launched, updates

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 150
Fault = Callable[..., None]


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 batches of 16 in an epoch; a checkpoint every 15 updates, the last 3 of them kept; with dropout."""
    limits = (
        f"--dropout 0.2 --batch-size 16 --max-update {UPDATES} --save-interval-updates 15 --keep-interval-updates 3"
    )
    dropped = ("--log-format", "json", "--num-workers", "0")
    settings = [*(word for word in SETTINGS[2:] if word not in dropped), *limits.split(), "--num-workers", "1"]
    file = tmp_path_factory.mktemp("recipe") / "mine.txt"
    file.write_text(shlex.join([str(corpus), *settings, "--seed", "3"]) + "\n")
    return file


def begin(command: list[str], stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a terminal does."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=variables, start_new_session=True, stdout=stdout, stderr=subprocess.STDOUT, text=True,
        # Tests that a script runs in its background ignore SIGINT, and what they start inherits it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def finish(command: list[str]) -> str:
    process = begin(command)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output[-3000:]
    return str(output)


def processes_of(group: int) -> list[str]:
    """Return the processes of a session that still live, and are no zombies."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, session = rest.split()[:4]
        if int(session) == group and state != "Z":
            found.append(name)
    return found


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str], pause: float = 0.02) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(pause)


def logged(run: Path) -> int:
    """Return how many updates the log of a run tells of."""
    file = run / "train.log"
    return len(updates(file.read_text())) if file.exists() else 0


def all_are_whole(run: Path) -> bool:
    return all(zipfile.ZipFile(file).testzip() is None for file in run.glob("*.pt"))


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run that was never stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    finish(launched(recipe, run))
    return run / "checkpoint_last.pt"


# ------------------------------------------------------------------------------------------------------------- signals


def stop(recipe: Path, run: Path, number: signal.Signals, whom: str, after: int) -> tuple[int, str]:
    """Send a signal to the launcher alone or to all of its group after so many updates; return code and output."""
    process = begin(launched(recipe, run))
    wait_for(lambda: logged(run) >= after, process)
    (os.killpg if whom == "group" else os.kill)(process.pid, number)
    output = process.communicate(timeout=120)[0]
    assert processes_of(process.pid) == []
    return process.returncode, str(output)


STOPS = [(signal.SIGINT, "group")]
MORE_STOPS = [(signal.SIGTERM, "launcher"), (signal.SIGTERM, "group"), (signal.SIGHUP, "group")]


@pytest.mark.parametrize(
    ("number", "whom"), [*STOPS, *(pytest.param(*stop, marks=pytest.mark.long) for stop in MORE_STOPS)]
)
def test_a_signal_saves_and_stops(
    number: signal.Signals, whom: str, recipe: Path, whole: Path, tmp_path: Path, fault: Fault
) -> None:
    """The worker that reads data gets the signal too where the group does."""
    run = tmp_path / "run"
    code, output = stop(recipe, run, number, whom, 17)
    assert code == 128 + number, output[-3000:]
    assert "Ctrl-C again stops at once" in output and "interrupted; the same command resumes" in output
    stopped = compat.load_checkpoint(run / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert f"stopped by {number.name} after update {stopped}" in (run / "train.log").read_text()
    assert 17 <= stopped < UPDATES and not list(run.glob("*.tmp"))
    finish(launched(recipe, run))
    assert_same_state(run / "checkpoint_last.pt", whole)
    fault(f"{number.name} to the {whom} of a training", 1, f"saved, exit code {code}, resumed: weights bitwise equal")


def test_a_training_that_has_all_its_updates_makes_no_more(train: Callable[..., Any], tmp_path: Path) -> None:
    """Killed after its last checkpoint, before anybody noted that it has finished; in the middle of an epoch."""
    for _ in range(2):
        done = train(tmp_path, "--max-update", 3)
        state = compat.load_checkpoint(tmp_path / "checkpoint_last.pt")
        assert state["optimizer_history"][-1]["num_updates"] == 3 and "done training" in done.output


def test_a_second_interrupt_stops_at_once_and_terminating_twice_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping._Stop, "asked", 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)
    with stopping._answering(stopping._ask):
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), signal.SIGTERM)  # Slurm sends it to every process, and each passes it on
        except KeyboardInterrupt:  # it would end pytest
            pytest.fail("SIGTERM is taken for a second Ctrl-C")
        assert stopping._Stop.asked == signal.SIGTERM
        stopping._Stop.asked = 0
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.signal(signal.SIGINT, before[0]) == signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == before[1]


def test_a_validation_without_its_worker_is_saved_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sends SIGTERM to all processes of a job: what reads the validation data ends by it."""
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
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back what is wrapped now
    stopping.save_when_stopped()
    lost = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    for asked, size, error, expected in (
        (15, 1, lost, SystemExit),
        (15, 1, ConnectionResetError(), SystemExit),
        (15, 1, RuntimeError("another"), RuntimeError),
        (15, 2, lost, RuntimeError),
        (0, 1, lost, RuntimeError),
    ):
        monkeypatch.setattr(stopping._Stop, "asked", asked)
        trainer = SimpleNamespace(data_parallel_world_size=size, get_num_updates=lambda: 9)
        with pytest.raises(expected) as end:
            program.validate_and_save(SimpleNamespace(checkpoint=None), trainer, None, "place")
        assert end.value is error or getattr(end.value, "code", 0) == 143
        assert saved == [(trainer, "place", None)] * (expected is SystemExit)
        saved.clear()


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping._answering(stopping._ask):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def trainer_of(rank: int) -> int:
    """Return the PID of the fairseq-train that is a rank of a training started by hand."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_text().split("\0")
        except OSError:
            continue
        if any(word.endswith("bin/fairseq-train") for word in words) and f"--distributed-rank\0{rank}" in "\0".join(
            words
        ):
            return int(status.parent.name)
    raise AssertionError(f"no rank {rank}")


def start_two(recipe: Path, run: Path, *more: str) -> list[subprocess.Popen[str]]:
    return [begin([*command, *more]) for command, _ in by_hand(launched(recipe, run), free_port())]


@pytest.mark.long
def test_a_signal_to_one_of_two_processes_stops_both(recipe: Path, tmp_path: Path, fault: Fault) -> None:
    """They stop after the same update, and go on as if never stopped."""
    run = tmp_path / "run"
    both = start_two(recipe, run)
    wait_for(lambda: logged(run) >= 27, both[0])
    os.kill(trainer_of(1), signal.SIGTERM)
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [143, 143], "".join(outputs)[-3000:]
    logs = [(run / name).read_text() for name in ("train.log", "train.rank1.log")]
    stopped = compat.load_checkpoint(run / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert f"stopped by SIGTERM after update {stopped}" in logs[0] and stopped >= 27
    for folder in (run, tmp_path / "whole"):
        ends = start_two(recipe, folder)
        outputs = [process.communicate(timeout=300)[0] for process in ends]
        assert [process.returncode for process in ends] == [0, 0], "".join(outputs)[-3000:]
    assert_same_state(run / "checkpoint_last.pt", tmp_path / "whole" / "checkpoint_last.pt")
    fault("SIGTERM to one of two gloo processes", 1, "both saved and stopped (143), resumed: weights bitwise equal")


@pytest.fixture
def own_two(corpus: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """As on a machine with two GPUs: one fairseq-train, which starts a process for each and waits for them; its log."""
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
def test_processes_that_fairseq_starts_itself_are_told(
    own_two: tuple[subprocess.Popen[str], Path], tmp_path: Path, fault: Fault
) -> None:
    process, log = own_two
    process.terminate()
    assert process.wait(timeout=120) == 143, log.read_text()[-3000:]
    assert processes_of(process.pid) == [] and "stopped by SIGTERM after update" in log.read_text()
    assert compat.load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")["model"]
    fault("SIGTERM to the fairseq-train that waits for its two processes", 1, "both saved and stopped (143), none left")


@pytest.mark.long
def test_processes_that_fairseq_starts_itself_end_with_one_of_them(
    own_two: tuple[subprocess.Popen[str], Path], fault: Fault
) -> None:
    """One is killed, and the other answers no signal, as in a collective on a GPU: torch kills it later."""
    process, log = own_two
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    killed, stuck = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(stuck, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    assert process.wait(timeout=100) not in (0, 143), log.read_text()[-3000:]
    seconds = time.monotonic() - began
    wait_for_none = time.monotonic() + 30  # workers that read data look for their parent every few seconds
    while processes_of(process.pid) and time.monotonic() < wait_for_none:
        time.sleep(0.5)
    assert processes_of(process.pid) == []
    fault(
        "SIGKILL to one of the two processes of a fairseq-train while the other answers nothing", 1,
        f"all end, with an error, after {seconds:.0f} s",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- kills


def test_no_checkpoint_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file itself nor its copies under the names of the best and the last."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    def full(source: Any, target: Any) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    old, new = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint1.pt"
    torch.save({"old": 1}, old)
    torch.save({"new": torch.zeros(1000)}, new)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # 0.12.2 does not wait, fairseq-fixed does
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(compat.UserError, match=r"checkpoint_last.pt: cannot be written: No space .* MB are free"):
            PathManager.copy(str(new), str(old), overwrite=True)
    assert torch.load(old, weights_only=True) == {"old": 1}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", lambda _, file: full("", file.name))
        with pytest.raises(compat.UserError, match=r"checkpoint_last.pt: cannot be written: .*; it takes 4.0 MB, and"):
            checkpoint_utils.torch_persistent_save({"model": {"w": torch.zeros(10**6)}}, str(old))
    assert torch.load(old, weights_only=True) == {"old": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint1.pt", "checkpoint_last.pt"]
    assert PathManager.copy(str(new), str(old), overwrite=True)
    assert torch.load(old, weights_only=True)["new"].sum() == 0


def kill_at(command: list[str], moment: Callable[[subprocess.Popen[str]], None]) -> bool:
    """Start a command, kill its whole group with SIGKILL at a moment; return whether it still ran."""
    process = begin(command)
    moment(process)
    was_running = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL) if was_running else None
    process.communicate()
    return was_running


@pytest.mark.long
def test_kills_at_random_moments_of_a_training(recipe: Path, whole: Path, tmp_path: Path, fault: Fault) -> None:
    run, choose, kills = tmp_path / "run", random.Random(11), 0

    def after_updates(process: subprocess.Popen[str]) -> None:
        seen = logged(run)
        wait_for(lambda: logged(run) > seen or process.poll() is not None, process, 0.005)
        time.sleep(choose.uniform(0, 0.8))

    def while_writing(process: subprocess.Popen[str]) -> None:
        wait_for(lambda: list(run.glob("*.tmp")) or process.poll() is not None, process, 0)

    def anywhere(process: subprocess.Popen[str]) -> None:
        time.sleep(choose.uniform(0, 12))

    for moment in [after_updates, while_writing, anywhere, after_updates, while_writing] * 2:
        kills += kill_at(launched(recipe, run), moment)
        assert not run.exists() or all_are_whole(run)
        assert not (record := run / "run.json").exists() or not json.loads(record.read_text())["finished"]
    assert kills >= 8
    finish(launched(recipe, run))
    assert_same_state(run / "checkpoint_last.pt", whole)
    fault(
        "SIGKILL at random moments of a training, four of them while a checkpoint was written", kills,
        "every checkpoint whole at any time; the weights at the end bitwise those of an uninterrupted run",
    )  # fmt: skip


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("what", ["prepare", "average", "evaluate", "study"])
def test_kills_at_random_moments_of_a_command(
    what: str, raw_text: dict[str, Path], corpus: Path, whole: Path, tmp_path: Path, fault: Fault
) -> None:
    """Killed five times at moments spread over its time, run again, it leaves what it leaves undisturbed."""
    program = [sys.executable, "-m", "fairseq_resid", what]
    texts = [word for split in ("train", "valid", "test") for word in (f"--{split}", str(raw_text[split]))]

    def command(folder: Path) -> list[str]:
        if what == "study":
            folder.mkdir(exist_ok=True)
            (folder / "recipe.txt").write_text(test_study.FLAGS)
            (folder / "real.yaml").write_text(test_study.REAL.format(recipe=folder / "recipe.txt", data=corpus))
            return [*program, str(folder / "real.yaml"), "--work", str(folder / "work"), "--weights", "--jobs", "1"]
        if what == "prepare":
            words = ["custom", *texts, "--source", "en", "--target", "xx", "--vocab-size", "90", "--name", "tiny"]
            return [*program, *words, "--out", str(folder / "data")]
        run = folder / "run"
        if not run.exists():
            shutil.copytree(whole.parent, run)
        if what == "average":
            return [*program, "--inputs", str(run), "--last", "3", "--output", str(run / "out.pt")]
        return [*program, str(run), "--last", "2", "--cpu"]

    started = time.monotonic()
    finish(command(tmp_path / "calm"))
    seconds = time.monotonic() - started
    choose, kills, folder = random.Random(5), 0, tmp_path / "killed"
    for part in range(5):
        wait = choose.uniform(part / 5, (part + 1) / 5) * seconds
        kills += kill_at(command(folder), lambda _, wait=wait: time.sleep(wait))  # type: ignore[misc]
        if what == "average" and (out := folder / "run" / "out.pt").exists():
            assert compat.load_checkpoint(out)["model"]
    finish(command(folder))
    calm, killed = (tree(at) for at in (tmp_path / "calm", folder))
    assert sorted(calm) == sorted(killed) and kills >= 3
    # Of a study also its own file, which names its folder, and checkpoints, which hold times.
    with_times = (".log", ".log.gz", ".out", ".json", ".md", ".svg", *((".yaml", ".pt") if what == "study" else ()))
    assert [name for name in calm if calm[name] != killed[name] and not name.endswith(with_times)] == []
    if what == "study":
        assert_same_state(*(at / "work/recipe.base.seed1/checkpoint_last.pt" for at in (tmp_path / "calm", folder)))
    fault(f"SIGKILL at random moments of `{what}`", kills, f"run again, it leaves the same {len(calm)} files")


def test_the_newest_whole_checkpoint_is_taken(recipe: Path, whole: Path, tmp_path: Path, fault: Fault) -> None:
    """checkpoint_last.pt empty, cut, or with a hole in it; the newest numbered one cut too."""
    from fairseq_resid.folders.run import Run
    from fairseq_resid.training.launch import repair_last_checkpoint

    content = whole.read_bytes()
    hole = bytearray(content)
    hole[len(hole) // 2 : len(hole) // 2 + 4096] = bytes(4096)
    for damaged in (b"", content[:100], content[: len(content) // 2], content[:-1], bytes(hole)):
        run = Run(tmp_path / "run")
        shutil.copytree(whole.parent, run.path)
        run.last.write_bytes(damaged)
        newest, other = run.numbered("update")[-1:-3:-1]
        newest.write_bytes(damaged)
        repair_last_checkpoint(run, ["fairseq-train"])
        assert run.last.read_bytes() == other.read_bytes()
        shutil.rmtree(run.path)
    fault("checkpoint_last.pt and the newest numbered one empty, cut, or with 4 KiB of zeros", 5, "the next whole one")


# ----------------------------------------------------------------------------------------------------------- full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Make a file system of so many KiB, or give an existing one another size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        options = f"size={size}k" + (",remount" if folder.is_mount() else "")
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
        ).returncode:
            pytest.skip("no file system can be mounted here")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
def test_a_full_disk(recipe: Path, whole: Path, small_disk: Callable[[int], Path], fault: Fault) -> None:
    size = whole.stat().st_size // 1024
    disk = small_disk(int(4.5 * size))
    run = disk / "run"
    process = begin(launched(recipe, run))
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 1, output[-2000:]
    said = [line for line in output.splitlines() if "cannot be written" in line]
    assert said and "No space left on device; it takes" in said[-1] and str(run) in said[-1], output[-2000:]
    assert all_are_whole(run) and list(run.glob("checkpoint_*.pt")) and not list(run.glob("*.tmp"))
    small_disk(20 * size)
    finish(launched(recipe, run))
    assert_same_state(run / "checkpoint_last.pt", whole)
    fault(
        "a disk with room for four checkpoints", 1,
        "the error names file, MB it takes and MB free; all before it whole; with room, bitwise the same end",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- lost processes


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_two_processes_is_killed(rank: int, recipe: Path, tmp_path: Path, fault: Fault) -> None:
    run = tmp_path / "run"
    both = start_two(recipe, run)
    wait_for(lambda: logged(run) >= 27, both[0])
    os.kill(trainer_of(rank), signal.SIGKILL)
    killed = time.monotonic()
    outputs = [process.communicate(timeout=60)[0] for process in both]
    seconds = time.monotonic() - killed
    assert [process.returncode for process in both] == [1, 1], "".join(outputs)[-2000:]
    assert [processes_of(process.pid) for process in both] == [[], []] and all_are_whole(run)
    fault(f"SIGKILL to rank {rank} of two gloo processes", 1, f"the other ends with an error after {seconds:.0f} s")


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[BaseException | None]]:
    """Let processes with these facts meet, each in a thread; return what each ended with."""
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


def test_processes_that_train_the_same_meet(meeting: Any) -> None:
    assert meeting({"--seed": "1"}, {"--seed": "1"}, {"--seed": "1"}) == [None, None, None]


def test_processes_that_differ_are_named(meeting: Any, fault: Fault) -> None:
    for facts, said in (
        ({"--seed": "2"}, "rank 1 would train something else than rank 0: --seed is 2, and 1 on rank 0"),
        ({"--seed": "1", "the data's dict.en.txt": "7 bytes"}, "the data's dict.en.txt is 7 bytes, and None on rank 0"),
        ({}, "--seed is None, and 1 on rank 0"),
    ):
        ends = meeting({"--seed": "1"}, facts, {"--seed": "1"})
        assert all(said in str(end) and "rank 1 would" in str(end) for end in ends), ends
    fault(
        "another seed, other data, another setting on one of three ranks",
        3,
        "every rank names the rank and both values",
    )


def test_a_process_that_does_not_come_is_missed(meeting: Any, fault: Fault) -> None:
    ends = meeting({"--seed": "1"}, None)
    assert "rank 0 of 2: the processes of this training do not meet at tcp://127.0.0.1:" in str(ends[0])
    assert "within 3 s: " in str(ends[0]) and "1/2" in str(ends[0])
    ends = meeting(None, {"--seed": "1"})
    assert "rank 1 of 2: the processes of this training do not meet" in str(ends[1])
    fault("a rank that never comes", 2, "the others end with an error after 5 minutes (3 s in the test)")


def test_a_port_in_use_is_named(meeting: Any, fault: Fault) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ends = meeting({"--seed": "1"}, None, port=port)
    assert f"do not meet at tcp://127.0.0.1:{port} within 3 s: its port is in use: give another one" in str(ends[0])
    fault("the port of the rendezvous is in use", 1, "the error names the address")


def test_what_processes_compare(corpus: Path) -> None:
    """Settings that each has for itself are no facts; what the data folder holds is."""
    from argparse import Namespace

    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"common": {"seed": 1, "user_dir": "here"}, "task": {"data": str(corpus)}, "none": None})
    facts = processes._facts(cfg)
    assert facts["--seed"] == "1" and "--user-dir" not in facts and "--data" not in facts
    dictionary = corpus / "dict.en.txt"
    assert facts["the data's dict.en.txt"] == f"{dictionary.stat().st_size} bytes"
    assert processes._facts({"task": Namespace(data="nowhere", seed=2)}) == {"--seed": "2"}


@pytest.mark.long
def test_two_processes_with_other_seeds(recipe: Path, tmp_path: Path, fault: Fault) -> None:
    commands = by_hand(launched(recipe, tmp_path / "run"), free_port())
    both = [begin([*command, "--seed", str(5 + rank)]) for rank, (command, _) in enumerate(commands)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [1, 1]
    assert all(
        "rank 1 would train something else than rank 0: --seed is 6, and 5 on rank 0" in text for text in outputs
    )
    assert not list((tmp_path / "run").glob("*.pt"))
    fault("two trainings of one run with two seeds", 1, "both end before the first update, and name the seeds")
