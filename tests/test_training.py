"""Recipes and the launcher: one stock command that resumes, is found finished, or is refused when changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fairseq_resid.runs import Run
from fairseq_resid.training import launch, recipe

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
Capture = pytest.CaptureFixture[str]


FAKE = """#!/bin/sh
echo "$@" >> FOLDER/calls
while [ "$1" != --save-dir ]; do shift; done
[ -e FOLDER/crash ] || : > "$2/checkpoint_1_9.pt"
[ ! -e FOLDER/slow ] || { trap 'kill $!; echo asked to stop >> FOLDER/calls; exit 0' TERM; sleep 30 & wait; }
exit $(cat FOLDER/code)
"""


@pytest.fixture
def fake_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fairseq-train that writes down how it was called, leaves a checkpoint, and exits with the code in `code`."""
    program = tmp_path / "bin" / "fairseq-train"
    program.parent.mkdir()
    program.write_text(FAKE.replace("FOLDER", str(tmp_path)))
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    monkeypatch.setattr("sys.executable", str(program.parent / "python"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_train_then_found_finished(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer_sas", "--lr", "0.5"]
    assert launch.main(words) == 0
    (call,) = calls(fake_train)
    assert call.startswith("data-bin/phrasebook --encoder-layers 2") and call.endswith("train.log --lr 0.5")
    assert "--arch transformer_sas --save-dir checkpoints/quickstart-transformer_sas" in call
    shown = capsys.readouterr().out
    assert "+ fairseq-train data-bin/phrasebook" in shown and "--adam-betas '(0.9, 0.98)'" in shown
    record = json.loads(Path("checkpoints/quickstart-transformer_sas/run.json").read_text())
    assert record["finished"] and record["command"][0] == "fairseq-train" and record["versions"]["torch"]
    assert launch.main(words) == 0
    assert len(calls(fake_train)) == 1 and "trained already" in capsys.readouterr().out


def test_a_failed_training_is_resumed_and_refused_under_other_settings(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 2
    assert "exit code 3" in capsys.readouterr().err
    assert launch.main([*words, "--lr", "0.25"]) == 2
    error = capsys.readouterr().err
    assert "run: was begun with other settings" in error and "0.25" in error and len(calls(fake_train)) == 1
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0
    assert len(calls(fake_train)) == 2 and calls(fake_train)[0] == calls(fake_train)[1]


def test_a_start_that_made_no_checkpoint_binds_nobody(fake_train: Path) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "crash").touch()
    (fake_train / "code").write_text("2")
    assert launch.main([*words, "--lrr", "3"]) == 2
    (fake_train / "crash").unlink()
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0


def test_the_plugin_may_be_spelled_otherwise_on_resume(fake_train: Path) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", str(fake_train / "run")]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 2
    record = json.loads((fake_train / "run" / "run.json").read_text())
    command = record["command"]
    command[command.index("--user-dir") + 1] = "fairseq_resid"
    (fake_train / "run" / "run.json").write_text(json.dumps(record))
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0


def test_a_truncated_last_checkpoint_is_replaced_by_the_newest_numbered_one(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 2
    torch.save({"update": 9}, "run/checkpoint_1_9.pt")
    torch.save({"update": 18}, "run/checkpoint_2_18.pt")
    whole = Path("run/checkpoint_2_18.pt").read_bytes()
    Path("run/checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    assert launch.main(words) == 2
    assert "checkpoint_last.pt: not whole; going on from checkpoint_2_18.pt" in capsys.readouterr().out
    assert Path("run/checkpoint_last.pt").read_bytes() == whole


@pytest.mark.parametrize("flag", ["--save-dir", "--log-file=x", "--user-dir", "--log-format"])
def test_flags_that_would_move_the_run_are_refused(fake_train: Path, capsys: Capture, flag: str) -> None:
    assert launch.main(["quickstart", "--arch", "transformer", flag, "x"]) == 2
    assert f"{flag}: set by train.sh" in capsys.readouterr().err and not calls(fake_train)


@pytest.mark.parametrize("text", ["{", '{"x": 1}', "[]", '{"command": 3, "finished": true}'])
def test_a_damaged_record_is_named(fake_train: Path, capsys: Capture, text: str) -> None:
    (fake_train / "run").mkdir()
    (fake_train / "run" / "run.json").write_text(text)
    assert launch.main(["quickstart", "--arch", "transformer", "--run", "run"]) == 2
    assert "run/run.json: damaged" in capsys.readouterr().err and not calls(fake_train)


def test_a_recipe_with_an_open_quote_is_named(fake_train: Path, capsys: Capture) -> None:
    (fake_train / "mine.txt").write_text("data --adam-betas '(0.9\n")
    assert launch.main(["mine.txt", "--arch", "transformer"]) == 2
    assert "mine.txt: No closing quotation" in capsys.readouterr().err


def test_one_process_at_a_time_and_none_left_behind(fake_train: Path, capsys: Capture) -> None:
    """SIGTERM to the launcher stops fairseq-train and waits for it; until then the folder is locked."""
    (fake_train / "slow").touch()
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    # The environment's Python, with the fake command found first: it is beside no interpreter of ours.
    code = f"import sys; sys.executable = {str(fake_train / 'bin' / 'python')!r}\n"
    code += f"from fairseq_resid.training.launch import main; sys.exit(main({words!r}))"
    process = subprocess.Popen([PYTHON, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while not Path("run/checkpoint_1_9.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert launch.main(words) == 2
    assert "run: another training or evaluation is at work in it" in capsys.readouterr().err
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert calls(fake_train)[-1] == "asked to stop"
    (fake_train / "slow").unlink()
    assert launch.main(words) == 0


def test_checkpoints_of_somebody_else_are_left_alone(fake_train: Path, capsys: Capture) -> None:
    (fake_train / "run").mkdir()
    (fake_train / "run" / "checkpoint_last.pt").touch()
    assert launch.main(["quickstart", "--arch", "transformer", "--run", "run"]) == 2
    assert "holds checkpoints but no run.json" in capsys.readouterr().err and not calls(fake_train)


def test_unknown_recipe_names_those_there_are(fake_train: Path, capsys: Capture) -> None:
    assert launch.main(["quikstart", "--arch", "transformer"]) == 2
    error = capsys.readouterr().err
    assert "quikstart: no such recipe" in error and "multi30k-en-de, quickstart" in error and not calls(fake_train)


def test_changes_name_what_differs_in_order_too() -> None:
    assert launch.changes(["a", "--lr", "1"], ["a", "--lr", "2"]) == "was 1, now 2"
    assert launch.changes(["a"], ["a", "--bf16"]) == "was nothing, now --bf16"
    assert "order" in launch.changes(["a", "b"], ["b", "a"])


@pytest.mark.parametrize("name", recipe.available())
@pytest.mark.parametrize("arch", ["transformer", "transformer_sas", "transformer_rskip_ln"])
def test_shipped_recipes_parse_and_keep_the_checkpoints_that_are_averaged(name: str, arch: str, tmp_path: Path) -> None:
    from fairseq import options

    import fairseq_resid  # noqa: F401  (registers the architectures)

    command = launch.build_command(recipe.read(name), arch, Run(tmp_path), str(ROOT / "fairseq_resid"), [])
    args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
    assert args.arch == arch and args.no_epoch_checkpoints and args.distributed_world_size == 1
    # design: the checkpoints that are averaged span at most the final fifth of training
    updates = args.max_update or 3570
    assert args.keep_interval_updates * args.save_interval_updates <= 0.2 * updates
