"""Recipes and the launcher: one stock command that resumes, is found finished, or is refused when changed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid.commands import flags, machine
from fairseq_resid.folders.run import Run, log_record
from fairseq_resid.training import launch, plan, recipe
from fairseq_resid.training.display import Display
from support.clock import Clock

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
Capture = pytest.CaptureFixture[str]


FAKE = """#!/bin/sh
echo "$@" >> FOLDER/calls
while [ "$1" != --save-dir ]; do shift; done
[ -e FOLDER/crash ] || cp FOLDER/whole.pt "$2/checkpoint_1_9.pt"
[ ! -e FOLDER/slow ] || { trap 'kill $!; echo asked to stop >> FOLDER/calls; exit 0' TERM INT; sleep 30 & wait; }
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
    torch.save({"update": 9}, tmp_path / "whole.pt")
    monkeypatch.setattr("sys.executable", str(program.parent / "python"))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path / "data-bin" / "phrasebook")
    return tmp_path


def make_data(folder: Path) -> None:
    """Make what looks like a data folder."""
    folder.mkdir(parents=True)
    for name in (
        "dict.en.txt",
        "dict.vi.txt",
        *(f"train.en-vi.{side}.{kind}" for side in ("en", "vi") for kind in ("bin", "idx")),
    ):
        (folder / name).touch()


RUN = ["--run", "run"]


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_train_then_found_finished(fake_train: Path, capsys: Capture) -> None:
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
    assert len(calls(fake_train)) == 1 and "trained already" in capsys.readouterr().out


def test_a_failed_training_is_resumed_and_refused_under_other_settings(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 1
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
    assert launch.main([*words, "--lr", "3"]) == 1
    (fake_train / "crash").unlink()
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0


def test_the_plugin_may_be_spelled_otherwise_on_resume(fake_train: Path) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", str(fake_train / "run")]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 1
    record = json.loads((fake_train / "run" / "run.json").read_text())
    command = record["command"]
    command[command.index("--user-dir") + 1] = "fairseq_resid"
    (fake_train / "run" / "run.json").write_text(json.dumps(record))
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0


def test_a_truncated_last_checkpoint_is_replaced_by_the_newest_numbered_one(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 1
    torch.save({"update": 9}, "run/checkpoint_1_9.pt")
    torch.save({"update": 18}, "run/checkpoint_2_18.pt")
    whole = Path("run/checkpoint_2_18.pt").read_bytes()
    Path("run/checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])
    capsys.readouterr()
    assert launch.main(words) == 1
    assert "checkpoint_last.pt: missing or not whole; going on from checkpoint_2_18.pt" in capsys.readouterr().out
    assert Path("run/checkpoint_last.pt").read_bytes() == whole
    Path("run/checkpoint_last.pt").unlink()
    Path("run/checkpoint_2_18.pt").write_bytes(whole[:100])
    assert launch.main(words) == 1
    assert "missing or not whole; going on from checkpoint_1_9.pt" in capsys.readouterr().out
    for file in Path("run").glob("*.pt"):
        file.write_bytes(whole[:100])
    before = calls(fake_train)
    assert launch.main(words) == 2
    assert "run: none of its checkpoints is whole" in capsys.readouterr().err and calls(fake_train) == before


@pytest.mark.parametrize("flag", ["--save-dir", "--log-file=x", "--user-dir", "--log-format"])
def test_flags_that_would_move_the_run_are_refused(fake_train: Path, capsys: Capture, flag: str) -> None:
    assert launch.main(["quickstart", "--arch", "transformer", flag, "x"]) == 2
    assert f"{flag.split('=')[0]}: set by this command" in capsys.readouterr().err and not calls(fake_train)


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


def test_the_order_of_flags_and_their_spelling_do_not_matter(fake_train: Path) -> None:
    """As the record of an older version has them."""
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 1
    record = json.loads(Path("run/run.json").read_text())
    program, data, *rest = record["command"]
    record["command"] = [program, data, *[word for group in reversed(flags.groups(rest)) for word in spelled(*group)]]
    Path("run/run.json").write_text(json.dumps(record))
    (fake_train / "code").write_text("0")
    assert launch.main(words) == 0


def spelled(flag: str, values: tuple[str, ...]) -> list[str]:
    return [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]


def test_unknown_architectures_name_near_ones(fake_train: Path, capsys: Capture) -> None:
    assert launch.main(["quickstart", "--arch", "transformer_sass"]) == 2
    error = capsys.readouterr().err
    assert "--arch transformer_sass: no such architecture; near ones: transformer_sas" in error
    assert launch.main(["quickstart", "--arch", "nonsense"]) == 2
    assert "near ones: transformer, transformer_sas" in capsys.readouterr().err and not calls(fake_train)


def test_a_size_in_the_architecture_that_is_not_the_recipes_is_refused(fake_train: Path, capsys: Capture) -> None:
    make_data(fake_train / "data")
    Path("mine.txt").write_text("data --encoder-embed-dim 512 --max-tokens 100\n")
    assert launch.main(["mine.txt", "--arch", "transformer_sas_big"]) == 2
    error = capsys.readouterr().err
    assert "--arch transformer_sas_big has --encoder-embed-dim 1024, and the recipe 512" in error
    assert launch.main(["mine.txt", "--arch", "transformer_sas_wmt_en_de"]) == 0
    assert launch.main(["mine.txt", "--arch", "transformer_sas_big", "--encoder-embed-dim", "1024"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--drop-out", "0.1"], "--drop-out: fairseq-train has no such flag; near ones: --dropout"),
        (["--zzz=1"], "--zzz: fairseq-train has no such flag\n"),
        (["--optimizer", "adan"], "argument --optimizer: invalid choice: 'adan' (choose from "),
        (["--clip-norm", "much"], "argument --clip-norm: invalid float value: 'much'"),
        (["--skip-lambda"], "argument --skip-lambda: expected one argument"),
    ],
)
def test_flags_that_fairseq_would_not_take_are_refused_before_anything_is_done(
    words: list[str], message: str, fake_train: Path, capsys: Capture
) -> None:
    for dry in (["--dry-run"], []):
        assert launch.main(["quickstart", "--arch", "transformer_rskip_ln", "--run", "run", *words, *dry]) == 2
        out, error = capsys.readouterr()
        assert error.startswith(f"fairseq-resid train: error: {message}") and error.count("\n") == 1 and not out
    assert not calls(fake_train) and not Path("run").exists()


def test_data_that_is_not_there_names_the_script_that_makes_it(fake_train: Path, capsys: Capture) -> None:
    assert launch.main(["wmt14-en-de", "--arch", "transformer"]) == 2
    assert (
        "data-bin/wmt14-en-de: no such data folder; fairseq-resid prepare wmt14-en-de makes it"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "extra",
    [
        "other --fp16",
        "--memory-efficient-fp16 other",
        "--seed 3 other",
        "--restore-file other other --cpu",
        "--seed 3 other --wandb-project other",
    ],
)
def test_another_data_folder_replaces_the_recipes(extra: str, fake_train: Path, capsys: Capture) -> None:
    """Wherever it stands; what is the value of a flag stays one."""
    make_data(fake_train / "other")
    words = ["quickstart", *extra.split(), "--arch", "transformer", "--run", "run", "--precision", "auto"]
    assert launch.main([*words, "--dry-run"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:3] == ["+", "fairseq-train", "other"] and "data-bin/phrasebook" not in command
    assert command.count("other") == extra.split().count("other")
    assert launch.main(words) == 0
    assert launch.main(["quickstart", "--arch", "transformer", "--run", "run"]) == 2
    assert "the data was other, now data-bin/phrasebook" in capsys.readouterr().err


def test_the_plan_is_told_and_recorded(fake_train: Path, capsys: Capture) -> None:
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
    with pytest.raises(SystemExit):
        launch.main([*words, "--effective-batch", "0"])


def test_what_goes_on_with_other_versions_says_so_and_keeps_both(
    fake_train: Path, capsys: Capture, monkeypatch: Any
) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run"]
    (fake_train / "code").write_text("3")
    assert launch.main(words) == 1
    (fake_train / "code").write_text("0")
    monkeypatch.setattr(machine, "versions", lambda _: {"torch": "9"})
    monkeypatch.setattr(machine, "commit", lambda: "c0ffee")
    assert launch.main(words) == 0
    shown = capsys.readouterr().out
    assert "run: goes on with other commit" in shown and "run: goes on with other versions" in shown
    sessions = json.loads(Path("run/run.json").read_text())["sessions"]
    assert [session["commit"] == "c0ffee" for session in sessions] == [False, True]
    assert sessions[1]["versions"] == {"python": machine.python(), "torch": "9"} != sessions[0]["versions"]


def test_a_stop_by_the_clock_is_not_the_end(fake_train: Path, capsys: Capture) -> None:
    words = ["quickstart", "--arch", "transformer", "--run", "run", "--max-update", "20"]
    assert launch.main([*words, "--stop-time-hours", "0.1"]) == 0
    assert not json.loads(Path("run/run.json").read_text())["finished"]
    Path("run/train.log").write_text('{"epoch": 1, "train_loss": "1", "train_num_updates": "20"}\n')
    assert launch.main([*words, "--stop-time-hours", "2"]) == 0  # another limit is no other training
    assert len(calls(fake_train)) == 2 and json.loads(Path("run/run.json").read_text())["finished"]
    assert launch.main(words) == 0
    assert "trained already" in capsys.readouterr().out and len(calls(fake_train)) == 2


def test_the_same_run_spelled_otherwise(fake_train: Path, capsys: Capture) -> None:
    Path("mine.txt").write_text("data-bin/phrasebook/ --max-tokens 100\n")
    assert launch.main(["mine.txt", "--arch", "transformer", "--run", "run"]) == 0
    Path("mine.txt").write_text("\ufeffdata-bin/./phrasebook \\\n  --max-tokens=100 \\\n --update-freq 1 # no more\n")
    assert launch.main(["mine.txt", "--arch", "transformer", "--run", str(fake_train / "run")]) == 0
    assert "trained already" in capsys.readouterr().out
    # as 0.2.0 wrote it
    record = json.loads(Path("run/run.json").read_text())
    old = {"command": flags.without(record["command"], ["--distributed-world-size"]), "finished": True, "versions": {}}
    Path("run/run.json").write_text(json.dumps(old))
    assert launch.main(["mine.txt", "--arch", "transformer", "--run", "run"]) == 0


@pytest.mark.parametrize(
    ("recipe_text", "extra", "said"),
    [
        (
            "data-bin/phrasebook --max-tokens 9",
            "other --seed 3 another",
            "one data folder is needed, and these are given: other, another",
        ),
        ("--max-tokens 9", "", "one data folder is needed, and these are given: none"),
        ("data-bin/phrasebook --max-tokens 9 --arch transformer", "", "--arch: set by this command"),
        ("data-bin/phrasebook --max-tokens 9", "--fp16 --bf16", "--bf16 and --fp16: give one of them"),
        ("data-bin/phrasebook --max-tokens 9", "--seed -1", "--seed -1: one whole number, 0 or more"),
        ("data-bin/phrasebook --max-tokens 9", "--batch-size", "--batch-size/--max-sentences: expected one argument"),
        ("data-bin/phrasebook --max-tokens 9", "--batch-size 0", "--batch-size 0: one whole number, 1 or more"),
        ("data-bin/phrasebook --max-tokens 9", "--run mine.txt", "--run mine.txt: is a file"),
        ("half --max-tokens 9", "", "half: not a whole data folder: it has no train*.idx of both languages"),
    ],
)
def test_contradictions_are_refused(recipe_text: str, extra: str, said: str, fake_train: Path, capsys: Capture) -> None:
    make_data(fake_train / "half")
    (fake_train / "half" / "train.en-vi.en.idx").unlink()
    Path("mine.txt").write_text(recipe_text)
    assert launch.main(["mine.txt", *extra.split(), "--arch", "transformer", *([] if "--run" in extra else RUN)]) == 2
    assert said in capsys.readouterr().err and not calls(fake_train)


def test_an_interrupt_that_only_the_launcher_gets_is_passed_on(fake_train: Path) -> None:
    (fake_train / "slow").touch()
    code = f"import sys; sys.executable = {str(fake_train / 'bin' / 'python')!r}\n"
    code += "from fairseq_resid.commands import children; children.INTERRUPT_AFTER = 0.2\n"
    code += "from fairseq_resid.training.launch import main\n"
    code += "sys.exit(main(['quickstart', '--arch', 'transformer', '--run', 'run']))"
    process = subprocess.Popen([PYTHON, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while not Path("run/checkpoint_1_9.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=25) == 128 + signal.SIGINT
    assert calls(fake_train)[-1] == "asked to stop"


def test_the_commit_is_that_of_the_tree_and_says_what_was_changed(tmp_path: Path, monkeypatch: Any) -> None:
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
    (package / "version.py").write_text("2")
    assert machine.commit() == f"{head} with changes"


def test_a_recipe_is_read_as_a_shell_reads_it(tmp_path: Path) -> None:
    text = (
        "\ufeff# It's mine: \\\ndata#2 --lr 1e-3 \\\n  --dropout 0.1# # 10%\n\t#--fp16\n--adam-betas '(0.9, 0.98)' #'\n"
    )
    (tmp_path / "mine.txt").write_text(text)
    words = ["data#2", "--lr", "1e-3", "--dropout", "0.1#", "--adam-betas", "(0.9, 0.98)"]
    assert recipe.read(str(tmp_path / "mine.txt")) == words


@pytest.mark.parametrize("name", recipe.available())
@pytest.mark.parametrize("arch", ["transformer", "transformer_sas", "transformer_rskip_ln"])
def test_shipped_recipes_parse_and_keep_the_checkpoints_that_are_averaged(name: str, arch: str, tmp_path: Path) -> None:
    from fairseq import options

    import fairseq_resid.models  # noqa: F401  (registers the architectures)

    words = recipe.read(name)
    if name.endswith("v3") and arch == "transformer":  # stock has no --final-norm: the baseline is ours, pre-norm
        arch, words = "transformer_resid", [*words, "--residual", "pre_ln"]
    planned = plan.make(words, [], [], None)
    command = launch.build_command(words, arch, Run(tmp_path), [], planned.argv)
    args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
    assert args.arch == arch and args.distributed_world_size == 1
    if "epoch" in recipe.evaluation(name):  # as published: every epoch is kept, and the last ones are averaged
        assert not args.no_epoch_checkpoints and args.keep_last_epochs == -1 and args.save_interval_updates == 0
        return
    # design: the checkpoints that are averaged span at most the final fifth of training
    assert args.no_epoch_checkpoints
    updates = args.max_update or 3570
    assert args.keep_interval_updates * args.save_interval_updates <= 0.2 * updates


RECORD = '2026-01-02 03:04:05 | INFO | train_inner | {{"epoch": {epoch}, "update": {done}, "loss": "{loss}", '
RECORD += '"wps": "9876.5", "num_updates": "{updates}", "train_wall": "1"}}'


def test_the_display_says_how_far_a_training_is(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    clock = Clock(monkeypatch)
    with Display("run", ["fairseq-train", "--max-update", "400", "--max-epoch", "0"]) as shown:
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


def test_the_display_counts_epochs_if_they_are_the_limit(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    clock = Clock(monkeypatch)
    with Display("run", ["fairseq-train", "--max-epoch", "4"], begun=10) as shown:
        shown.take(RECORD.format(epoch=1, done=1.0, loss=8.5, updates=20))
        clock.now += 40
        shown.take(RECORD.format(epoch=2, done=2.0, loss=8.5, updates=40))
    assert capsys.readouterr().out == "  run: epoch 2 of 4, update 40, loss 8.5, 9,876 tokens/s, 0:01:20 left\n"


def test_log_records_of_both_versions_are_read() -> None:
    for line in (RECORD.format(epoch=1, done=1, loss=1, updates=3), '{"epoch": 1, "num_updates": "3"}\n'):
        record = log_record(line)
        assert record is not None and record["num_updates"] == "3"
    for line in ("", "{'_name': None}", '{"cut": ', "[1]", "2026-01-02 03:04:05 | INFO | fairseq_cli.train | {'a': 1}"):
        assert log_record(line) is None


def test_openmp_spins_for_a_bounded_time_unless_the_user_says_otherwise() -> None:
    assert launch.spinning({"PATH": "x"}) == {"GOMP_SPINCOUNT": launch.SPIN_COUNT}
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        assert launch.spinning({name: "1"}) == {}


def test_cpu_training_keeps_memory_unless_the_user_sets_it() -> None:
    assert launch.allocating({"PATH": "x"}) == launch.ALLOCATOR
    for name in launch.ALLOCATOR:
        assert launch.allocating({name: "1"}) == {}


def test_tensorboard_is_there_or_named(fake_train: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["quickstart", "--arch", "transformer", "--tensorboard-logdir", "tb", "--dry-run"]
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert launch.main(words) == 2
    assert "--tensorboard-logdir: needs TensorBoard: run pip install tensorboard" in capsys.readouterr().err
    monkeypatch.setattr(launch, "find_spec", lambda name: name == "tensorboardX" or None)
    assert launch.main(words) == 0


def test_a_failed_training_shows_the_end_of_its_log(fake_train: Path, capsys: Capture) -> None:
    program = fake_train / "bin" / "fairseq-train"
    program.write_text("#!/bin/sh\necho out of memory\necho of the GPU >&2\nexit 7\n")
    assert launch.main(["quickstart", "--arch", "transformer", "--run", "run"]) == 1
    out, error = capsys.readouterr()
    end = "error: fairseq-train failed with exit code 7; the last lines of run/train.log:"
    assert error.endswith(f"{end}\n    out of memory\n    of the GPU\n") and "out of memory" not in out
    assert launch.main(["quickstart", "--arch", "transformer", "--run", "run", "--verbose"]) == 1
    assert "\nout of memory\nof the GPU\n" in capsys.readouterr().out
