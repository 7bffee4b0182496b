"""`fairseq-resid train`: trains, resumes, recognises a finished run and forwards signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid import records
from fairseq_resid.cli import machine
from fairseq_resid.runs import launch
from fairseq_resid.runs.made_from import FileState, MadeFrom
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.training_command import TrainingCommand
from support.fake_training import calls

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
Capture = pytest.CaptureFixture[str]
WORDS = ["quickstart", "--arch", "transformer", "--run", "run"]


def test_finished_training_is_not_repeated(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer_sas", "--lr", "0.5"]
    assert launch.main(words) == 0
    (call,) = calls(fake_train)
    assert call.startswith("data-bin/phrasebook --encoder-layers 2") and call.endswith("--log-format json --lr 0.5")
    assert "--arch transformer_sas --distributed-world-size 1 --max-tokens 1600 --save-dir checkpoints/quick" in call
    shown = capsys.readouterr().out
    assert "+ fairseq-train data-bin/phrasebook" in shown and "--adam-betas '(0.9, 0.98)'" in shown
    record = json.loads(Path("checkpoints/quickstart-transformer_sas/run.json").read_text())
    assert record["finished"] and record["command"][0] == "fairseq-train" and record["sessions"][0]["versions"]["torch"]
    assert launch.main(words) == 0
    assert len(calls(fake_train)) == 1 and "already trained" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("clip", "remedy"),
    [("0", "a lower --lr or --clip-norm 1"), ("25", "a lower --lr or --clip-norm 1"), ("1", "a lower --lr")],
)
def test_exploded_gradient_is_reported(fake_train: Path, capsys: Capture, clip: str, remedy: str) -> None:
    norms = ["0.5"] * 9 + ["1234.5"]
    lines = [f'{{"epoch": 1, "gnorm": "{norm}", "num_updates": "{at}"}}\n' for at, norm in enumerate(norms, start=1)]
    (fake_train / "log").write_text("".join(lines))
    assert launch.main(["quickstart", "--arch", "transformer_sas", "--run", "run", "--clip-norm", clip]) == 0
    shown = capsys.readouterr()
    assert "run: trained: 10 updates" in shown.out
    said = "run: warning: the gradient exploded (norm 1,234 at update 10, median 0.5); try"
    assert f"{said} {remedy}\n" in shown.err


def test_examples_that_fairseq_skips_are_reported(fake_train: Path, capsys: Capture) -> None:
    line = (
        "| WARNING | tasks.fairseq_task | {} samples have invalid sizes and will be skipped, max_positions=(64, 64), "
    )
    session = "fairseq_cli.train | {'_name': None}\n"
    (fake_train / "log").write_text(session + 2 * f"{line.format('1,234')}first few sample ids=[7, 3]\n")
    assert launch.main(WORDS) == 0
    said = "run: warning: fairseq skipped 1,234 examples, which are longer than the model's positions (64, 64)\n"
    assert capsys.readouterr().err == said


def test_failed_training_resumes_only_with_same_settings(fake_train: Path, capsys: Capture) -> None:
    (fake_train / "code").write_text("3")
    assert launch.main(WORDS) == 1
    assert "exit code 3" in capsys.readouterr().err
    assert launch.main([*WORDS, "--lr", "0.25"]) == 2
    error = capsys.readouterr().err
    assert "run: was started with different settings" in error and "0.25" in error and len(calls(fake_train)) == 1
    (fake_train / "code").write_text("0")
    assert launch.main(WORDS) == 0
    assert len(calls(fake_train)) == 2 and calls(fake_train)[0] == calls(fake_train)[1]


def test_run_without_checkpoint_may_change_settings(fake_train: Path) -> None:
    (fake_train / "crash").touch()
    (fake_train / "code").write_text("2")
    assert launch.main([*WORDS, "--lr", "3"]) == 1
    (fake_train / "crash").unlink()
    (fake_train / "code").write_text("0")
    assert launch.main(WORDS) == 0


def test_damaged_checkpoint_is_replaced_by_newest_intact_one(fake_train: Path, capsys: Capture) -> None:
    """The newest checkpoint may be one that ends an epoch."""
    (fake_train / "code").write_text("3")
    assert launch.main(WORDS) == 1
    (fake_train / "crash").touch()  # writes no checkpoints
    for name in ("_1_5", "_2_18", "_10_90", "9", "2"):
        torch.save({"name": name}, f"run/checkpoint{name}.pt")
    last = Path("run/checkpoint_last.pt")
    for newest in ("_10_90", "9", "2", "_2_18"):
        file = Path(f"run/checkpoint{newest}.pt")
        whole = file.read_bytes()
        last.write_bytes(whole[: len(whole) // 2])
        capsys.readouterr()
        assert launch.main(WORDS) == 1
        assert f"missing or damaged; resuming from {file.name}" in capsys.readouterr().out
        assert last.read_bytes() == whole
        file.write_bytes(whole[:100])
    for file in Path("run").glob("*.pt"):
        file.write_bytes(whole[:100])
    before = calls(fake_train)
    assert launch.main(WORDS) == 2
    assert "run: all checkpoints are damaged" in capsys.readouterr().err and calls(fake_train) == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:100])])
def test_finished_run_without_last_checkpoint_resumes(fake_train: Path, capsys: Capture, damage: Any) -> None:
    assert launch.main(WORDS) == 0
    damage(Path("run/checkpoint_last.pt"))
    capsys.readouterr()
    assert launch.main(WORDS) == 0
    shown = capsys.readouterr().out
    assert "checkpoint_last.pt: missing or damaged; resuming from checkpoint_1_9.pt" in shown
    assert len(calls(fake_train)) == 2 and json.loads(Path("run/run.json").read_text())["finished"]
    assert Path("run/checkpoint_last.pt").read_bytes() == Path("run/checkpoint_1_9.pt").read_bytes()
    assert launch.main(WORDS) == 0 and len(calls(fake_train)) == 2
    Path("run/checkpoint_1_9.pt").rename("run/checkpoint_best.pt")
    damage(Path("run/checkpoint_last.pt"))
    (fake_train / "crash").touch()
    assert launch.main(WORDS) == 0
    assert "missing or damaged; resuming from checkpoint_best.pt" in capsys.readouterr().out


def test_run_from_another_checkpoint_resumes_from_its_own(fake_train: Path) -> None:
    (fake_train / "code").write_text("3")
    (fake_train / "crash").touch()
    resets = ["--reset-optimizer", "--reset-dataloader", "--reset-lr-scheduler", "--reset-meters"]
    words = ["quickstart", "--arch", "transformer", "--run", "run", "--restore-file", "whole.pt", *resets]
    assert launch.main(words) == 1  # killed before its first checkpoint
    (fake_train / "crash").unlink()
    assert launch.main(words) == 1
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0
    *first, resumed = calls(fake_train)
    for call in first:
        assert "--restore-file whole.pt" in call and all(flag in call for flag in resets)
    assert "--restore-file" not in resumed and not any(flag in resumed for flag in resets)
    assert "--restore-file" in json.loads(Path("run/run.json").read_text())["command"]
    assert launch.main(words) == 0 and len(calls(fake_train)) == 3


def test_average_from_before_the_end_of_training_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for name in ("checkpoint_1_9.pt", "checkpoint_2_18.pt", "checkpoint_last.pt", "averaged.pt"):
        torch.save({}, tmp_path / name)
    made_from = [FileState.of(tmp_path / name) for name in ("checkpoint_1_9.pt", "checkpoint_2_18.pt")]
    records.write(tmp_path / "averaged.json", MadeFrom([*made_from, FileState.of(run.averaged)]))
    (tmp_path / "checkpoint_1_9.pt").unlink()
    assert run.checkpoint() == run.averaged
    torch.save({}, tmp_path / "checkpoint_10_90.pt")
    with pytest.raises(ValueError, match=r"up to checkpoint_2_18.pt, but training went on to checkpoint_10_90"):
        run.checkpoint()
    assert run.checkpoint("checkpoint_last.pt") == run.last and run.checkpoint("averaged.pt") == run.averaged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_launcher_locks_the_run_and_stops_its_child(fake_train: Path, capsys: Capture, number: signal.Signals) -> None:
    """After a signal, the launcher stops fairseq-train and waits for it; until then the folder is locked."""
    (fake_train / "slow").touch()
    # The process uses the real interpreter, but sys.executable is changed so that the fake command is found first.
    code = f"import sys; sys.executable = {str(fake_train / 'bin' / 'python')!r}\n"
    code += "from fairseq_resid.cli import children; children.INTERRUPT_AFTER = 0.2\n"
    code += f"from fairseq_resid.runs.launch import main; sys.exit(main({WORDS!r}))"
    process = subprocess.Popen([PYTHON, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while not Path("run/checkpoint_1_9.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert launch.main(WORDS) == 2
    assert "run: in use by another training or evaluation process" in capsys.readouterr().err
    process.send_signal(number)
    assert process.wait(timeout=25) == 128 + number
    assert calls(fake_train)[-1] == "stopped by a signal"
    (fake_train / "slow").unlink()
    assert launch.main(WORDS) == 0


def test_checkpoints_without_run_record_are_not_touched(fake_train: Path, capsys: Capture) -> None:
    (fake_train / "run").mkdir()
    (fake_train / "run" / "checkpoint_last.pt").touch()
    assert launch.main(WORDS) == 2
    assert "contains checkpoints but no run.json" in capsys.readouterr().err and not calls(fake_train)


def test_order_and_spelling_of_flags_do_not_matter(fake_train: Path) -> None:
    """The record has the form in which an older version wrote it, and another path of the plugin."""
    (fake_train / "code").write_text("3")
    assert launch.main(WORDS) == 1
    record = json.loads(Path("run/run.json").read_text())
    command = TrainingCommand.parse(record["command"])
    words_ = [word for group in reversed(command.flags) for word in spelled(*group)]
    words_ = ["--user-dir=fairseq_resid" if word.startswith("--user-dir") else word for word in words_]
    record["command"] = ["fairseq-train", command.data, *words_]
    Path("run/run.json").write_text(json.dumps(record))
    (fake_train / "code").write_text("0")
    assert launch.main(WORDS) == 0


def spelled(flag: str, values: tuple[str, ...]) -> list[str]:
    return [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]


def test_plan_is_printed_and_recorded(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run", "--max-tokens", "800", "--cpu"]
    assert launch.main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "effective batch processes × max-tokens × update-freq = 1 × 800 × 2 = 1,600 padded positions" in shown
    assert "run: CPU; " in shown and "; fp32 (CPU)\n" in shown and "+ fairseq-train" in shown
    assert not calls(fake_train) and not Path("run").exists()
    assert launch.main(words) == 0
    assert "--max-tokens 800 --update-freq 2" in calls(fake_train)[0]
    record = json.loads(Path("run/run.json").read_text())
    assert record["plan"]["effective batch"] == 1600 and record["seed"] == 1
    (session,) = record["sessions"]
    assert session["hardware"]["cpu"] and session["started"] and "commit" in session
    assert launch.main([*words, "--effective-batch", "800"]) == 2
    assert "--update-freq was 2, now not given" in capsys.readouterr().err


def test_resume_with_different_versions_warns_and_records_both(
    fake_train: Path, capsys: Capture, monkeypatch: Any
) -> None:
    (fake_train / "code").write_text("3")
    assert launch.main(WORDS) == 1
    (fake_train / "code").write_text("0")
    monkeypatch.setattr(machine, "versions", lambda _: {"torch": "9"})
    monkeypatch.setattr(machine, "commit", lambda: "c0ffee")
    assert launch.main(WORDS) == 0
    shown = capsys.readouterr().out
    assert "run: resuming with a different commit" in shown and "run: resuming with different versions" in shown
    sessions = json.loads(Path("run/run.json").read_text())["sessions"]
    assert [session["commit"] == "c0ffee" for session in sessions] == [False, True]
    assert sessions[1]["versions"] == {"python": machine.python(), "torch": "9"} != sessions[0]["versions"]


def test_time_limit_does_not_finish_a_run(fake_train: Path, capsys: Capture) -> None:
    """fairseq logs the mean of the last epoch even if it stops in the middle of it."""
    words = ["quickstart", "--arch", "transformer", "--run", "run", "--max-update", "0", "--max-epoch", "1"]
    begin = "fairseq_cli.train | {'_name': None}\n"
    stop = "fairseq_cli.train | Stopping training due to cumulative_training_time: 0.2 > stop_time_hours: 0.1 hour(s)\n"
    end = 'train | {"epoch": 1, "train_loss": "1", "train_num_updates": "20"}\n'
    (fake_train / "log").write_text(begin + stop + end)
    assert launch.main([*words, "--stop-time-hours", "0.1"]) == 0
    assert not json.loads(Path("run/run.json").read_text())["finished"]
    (fake_train / "log").write_text(begin + end)
    assert launch.main([*words, "--stop-time-hours", "2"]) == 0  # a different time limit does not change the model
    assert len(calls(fake_train)) == 2 and json.loads(Path("run/run.json").read_text())["finished"]
    assert launch.main(words) == 0
    assert "already trained" in capsys.readouterr().out and len(calls(fake_train)) == 2


def test_evaluation_options_are_checked_before_training_and_can_change_after_it(
    fake_train: Path, capsys: Capture
) -> None:
    words = ["mine.txt", "--arch", "transformer", "--run", "run"]
    Path("mine.txt").write_text("data-bin/phrasebook --max-tokens 100\n[evaluate]\n--lenpenalty 1\n")
    assert launch.main(words) == 2 and not calls(fake_train)
    assert "recipe mine.txt: [evaluate]: unrecognized arguments: --lenpenalty 1" in capsys.readouterr().err
    for penalty in ("1", "2"):
        Path("mine.txt").write_text(f"data-bin/phrasebook --max-tokens 100\n[evaluate]\n--lenpen {penalty}\n")
        assert launch.main(words) == 0 and len(calls(fake_train)) == 1
        assert json.loads(Path("run/run.json").read_text())["evaluate"] == ["--lenpen", penalty]
    assert "run: run.json now has the recipe's evaluation options: --lenpen 2" in capsys.readouterr().out


def test_equivalent_recipe_spellings_are_the_same_run(fake_train: Path, capsys: Capture) -> None:
    Path("mine.txt").write_text("data-bin/phrasebook/ --max-tokens 100\n")
    assert launch.main(["mine.txt", "--arch", "transformer", "--run", "run"]) == 0
    Path("mine.txt").write_text("\ufeffdata-bin/./phrasebook \\\n  --max-tokens=100 \\\n --update-freq 1 # no more\n")
    assert launch.main(["mine.txt", "--arch", "transformer", "--run", str(fake_train / "run")]) == 0
    assert "already trained" in capsys.readouterr().out
    # as written by 0.2.0
    record = json.loads(Path("run/run.json").read_text())
    command = TrainingCommand.parse(record["command"]).without(["--distributed-world-size"])
    old = {"command": command.argv, "finished": True, "versions": {}}
    Path("run/run.json").write_text(json.dumps(old))
    assert launch.main(["mine.txt", "--arch", "transformer", "--run", "run"]) == 0


def test_recorded_commit_shows_whether_files_were_changed(tmp_path: Path, monkeypatch: Any) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    package = tmp_path / "fairseq_resid"
    package.mkdir()
    monkeypatch.setattr(machine, "PACKAGE", package)
    assert machine.commit() is None
    (package / "version.py").write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.commit() == head
    (tmp_path / "notes.txt").write_text("outside the package")
    assert machine.commit() == head
    (package / "structure.py").write_text("new")
    assert machine.commit() == f"{head} with changes"
    (package / "structure.py").unlink()
    (package / "version.py").write_text("2")
    assert machine.commit() == f"{head} with changes"


def test_variables_for_threads_and_memory_apply_unless_user_sets_them() -> None:
    assert launch.variables({"PATH": "x"}, has_gpus=True) == {"GOMP_SPINCOUNT": launch.SPIN_COUNT}
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        assert launch.variables({name: "1"}, has_gpus=True) == {name: "1"}
    threads = {"OMP_NUM_THREADS": "1"}
    assert launch.variables(threads, has_gpus=False) == {**threads, **launch.ALLOCATOR}
    for name in launch.ALLOCATOR:
        assert launch.variables({**threads, name: "1"}, has_gpus=False) == {**threads, name: "1"}
