"""Preparation that is killed, interrupted, damaged or run twice at once: the next run gives the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid import records
from fairseq_resid.data.text import parallel, prepare
from fairseq_resid.data.text.pipeline import Kept
from fairseq_resid.data.text.resumable import Step, StepRecord, Steps
from support.preparing import ROOT, command, content, fail, main

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
STEPS = ["extract", "tokenise", "learn", "encode", "binarise"]


def stopping(where: str, hosts: dict[str, Path], out: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start support/stop_in_step.py with the arguments of `command`; it stops at `where`."""
    environment = {**os.environ, "PREPARE_TEST_STOP": where, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    argv = [sys.executable, "-m", "support.stop_in_step", *command(hosts, out)[4:]]
    return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, **settings)


def killed(where: str, hosts: dict[str, Path], out: Path) -> str:
    """Run until a step is half done, then kill the whole process group with SIGKILL; return the output."""
    process = stopping(where, hosts, out, start_new_session=True)
    assert process.stdout is not None
    seen = b""
    while b"STOPPED" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    assert not out.exists() and out.with_name("data.partial").exists()
    return seen.decode()


def finished(hosts: dict[str, Path], out: Path) -> bool:
    """Run the same preparation in this process, and return whether it succeeds."""
    return prepare.main([*command(hosts, out)[4:], "--workers", "1"]) == 0


@pytest.mark.both
def test_runs_that_are_killed_in_each_step_give_same_bytes(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Each run finishes the step in which the one before was killed, and is killed in the next step."""
    out = tmp_path / "data"
    for number, step in enumerate(["download", *STEPS]):
        assert killed(step, hosts, out).count("already done") == max(0, number - 2)
    assert finished(hosts, out)
    assert capsys.readouterr().out.count("already done") == len(STEPS) - 1
    assert content(out) == content(en_de)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "dl"}


def test_run_after_kills_between_shards_gives_same_bytes(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """After repeated kills with two workers and small shards, the result equals that of one worker and one shard."""
    out = tmp_path / "data"
    for stop in ("tokenise train/3", "tokenise test/1", "encode train/2"):
        killed(stop, hosts, out)
    monkeypatch.setattr(parallel, "SHARD_LINES", 20)
    assert finished(hosts, out)
    assert capsys.readouterr().out.count("already done") == 3
    assert content(out) == content(en_de)


# ------------------------------------------------------------------------------------------------ steps


class Work:
    """Three steps that each write a file; `ran` lists the steps that ran."""

    def __init__(self, work: Path, settings: str = "abc", stop: str = "") -> None:
        self.ran: list[str] = []
        declared = [("one", ()), ("two", ("one",)), ("three", ("two",))]
        steps = Steps(
            work, [Step(name, name, wish, reads) for (name, reads), wish in zip(declared, settings, strict=True)]
        )

        def make(folder: Path) -> Kept:
            self.ran.append(folder.name.split("-")[0])
            (folder / "text").write_text("text")
            if self.ran[-1] == stop:
                raise KeyboardInterrupt
            return Kept({})

        self.folders = [steps.run(name, Kept, make).folder for name, _ in declared]


@pytest.mark.parametrize("settings", ["abc", "abd"])  # the interrupted step may get other settings
def test_finished_steps_are_not_run_again(settings: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Work(tmp_path, stop="three")
    assert Work(tmp_path, settings).ran == ["three"]
    assert Work(tmp_path, settings).ran == []


def test_files_that_no_later_step_reads_are_deleted(tmp_path: Path) -> None:
    assert [(folder / "text").exists() for folder in Work(tmp_path).folders] == [False, False, True]


@pytest.mark.parametrize("settings", ["abd", "xbc"])
def test_results_with_different_settings_are_not_used(settings: str, tmp_path: Path) -> None:
    before = Work(tmp_path).folders
    after = Work(tmp_path, settings)
    assert after.ran == ["one", "two", "three"] and not before[2].exists()
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {*after.folders}


def test_damaged_step_and_its_inputs_run_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Work(tmp_path, stop="three")
    (next(tmp_path.glob("two-*")) / "text").write_text("tex")
    assert Work(tmp_path).ran == ["one", "two", "three"]  # the files of the first step have been deleted


def test_step_killed_before_rename_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record.json.partial that a kill left behind is not recorded as one of the step's files."""

    def rename(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq_resid.data.text.resumable.os.replace", rename)
        Work(tmp_path)
    (partial,) = tmp_path.glob("one-*.partial")
    (partial / "record.json.partial").write_text("{")
    work = Work(tmp_path)
    assert work.ran == ["one", "two", "three"]
    assert records.read(work.folders[0] / "record.json", StepRecord[Kept]) == StepRecord(Kept({}), {"text": 4})


# ------------------------------------------------------------------------------------------------ processes


@pytest.mark.parametrize(
    ("where", "number"), [("worker", signal.SIGKILL), ("worker", signal.SIGINT), ("learner", signal.SIGTERM)]
)
def test_signal_ends_all_child_processes(
    where: str, number: signal.Signals, hosts: dict[str, Path], en_de: Path, tmp_path: Path
) -> None:
    """Only the main process receives the signal; its children end too, and the next run succeeds."""
    out = tmp_path / "data"
    # Background jobs of a shell ignore SIGINT, and their children inherit this setting.
    hearing = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with stopping(where, hosts, out, stderr=subprocess.PIPE, preexec_fn=hearing) as process:
        assert process.stdout is not None and process.stderr is not None
        workers: list[int] = []
        while len(workers) < (2 if where == "worker" else 1):
            line = process.stdout.readline()
            assert line
            workers += [int(line.split()[1])] if line.startswith(b"WORKER") else []
        process.send_signal(number)
        if number == signal.SIGINT:
            assert b"interrupted; the same command resumes\n" in process.stderr.read()
        assert process.wait(20) == (130 if number == signal.SIGINT else -number)
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert finished(hosts, out) and content(out) == content(en_de)


def test_damaged_step_results_are_made_again(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    """The training files of every step are truncated between two runs; their recorded sizes reveal this."""
    out = tmp_path / "data"
    flags = ["--mirror", hosts["de"].as_uri()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairseq_resid.data.text.fairseq_preprocess.preprocess", fail)
        assert main("wmt14-en-de", out, *flags) == 1
    for file in (tmp_path / "data.partial").rglob("train.*"):
        file.write_bytes(file.read_bytes()[:100])
    assert main("wmt14-en-de", out, *flags) == 0
    assert content(out) == content(en_de)


def test_two_simultaneous_runs_make_one_corpus(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(command(hosts, tmp_path / "data"), cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert any("another process is using this folder; waiting" in text for text in outputs)
    assert content(tmp_path / "data") == content(en_de)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "dl"}
