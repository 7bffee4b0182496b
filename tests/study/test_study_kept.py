"""Kept runs of a study: missing, damaged, made with different settings, or from another study."""

from __future__ import annotations

import gzip
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_resid import records
from fairseq_resid.files import read_lines
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.training_command import TrainingCommand
from fairseq_resid.study import kept, plan, results, study
from fairseq_resid.study.plan import Planned
from fairseq_resid.study.work import StudyFolders
from support.studies import FLAGS, TEXT, all_kept, keep, note

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_diverged_run_ranks_last(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    runs = [Planned("flat", "base", value, 100, True) for value in (0.001, 0.002, 0.004)]
    notes = {run.name: note(run, 2.0 + 100 * (run.value or 0)) for run in runs}
    notes[runs[0].name] = replace(notes[runs[0].name], outcome="diverged", valid={})
    state = study.State(trial, StudyFolders(file, tmp_path, tmp_path), notes)
    assert state.nll()[runs[0]] == math.inf
    assert plan.choices(trial, state.nll())["flat", "base"].best == 0.002


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("sas: --residual sas", "--sas-alpha-bias was 0, now 3; --sas-beta-bias was 0, now -3"),
        ("sas: --residual sas --sas-beta-bias 0", "--sas-alpha-bias was 0, now 3"),
        ("sas: --residual sas --sas-alpha-bias 0 --sas-beta-bias 0", ""),
    ],
)
def test_gates_of_runs_before_version_1_started_at_0(
    arm: str, message: str, file: Path, tmp_path: Path, capsys: Capture
) -> None:
    trial = plan.read_study(file)
    run = Planned("flat", "sas", 0.001, 100, True)
    made = keep(tmp_path / "trial", run, 3.0, trial)
    assert "--sas-alpha-bias 3 --sas-beta-bias -3" in made.flags
    before = made.flags.replace("--sas-alpha-bias 3 --sas-beta-bias -3 ", "")
    records.write(kept.note_file(tmp_path / "trial" / run.name), replace(made, flags=before))
    file.write_text(TEXT.replace("sas: --residual sas", arm))
    assert study.main([str(file), "--plan"]) == (2 if message else 0)
    assert (f"was made with different settings ({message})" if message else "") in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["preact_resnet20", "rir"])
def test_commands_for_images_are_unchanged(arch: str) -> None:
    command = TrainingCommand.parse(["--arch", arch, "--residual", "sas"])
    assert plan.with_gate_starts(command, plan.FORMER_GATE_STARTS) == command


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--encoder-layers 1", "--encoder-layers 2", "--encoder-layers was 1, now 2"),
        ("recipe: quickstart", "average: 5\nrecipe: quickstart", "average was 10, now 5"),
        ("recipe: quickstart", "measure: BLEU\nrecipe: quickstart", "measure was NLL, now BLEU"),
        ("tests: [test, test1]", "tests: [test]", "tests was ['test', 'test1'], now ['test']"),
    ],
)
def test_changed_settings_are_refused(
    file: Path, tmp_path: Path, capsys: Capture, old: str, new: str, message: str
) -> None:
    trial = plan.read_study(file)
    run = Planned("flat", "base", 0.001, 1)
    keep(tmp_path / "trial", run, 3.0, trial, terms=kept.scoring_terms(trial, run))
    file.write_text(TEXT.replace(old, new))
    assert study.main([str(file), "--plan"]) == 2
    assert f"flat.base.0.001.seed1: was made with different settings ({message})" in capsys.readouterr().err


def test_decoding_flags_added_to_the_recipe_are_refused(file: Path, tmp_path: Path, capsys: Capture) -> None:
    recipe = tmp_path / "recipe.txt"
    recipe.write_text(FLAGS)
    file.write_text(TEXT.replace("recipe: quickstart", f"recipe: {recipe}"))
    trial = plan.read_study(file)
    run = Planned("flat", "base", 0.001, 1)
    keep(tmp_path / "trial", run, 3.0, trial, terms=kept.scoring_terms(trial, run))
    recipe.write_text(f"{FLAGS}\n[evaluate]\n--beam 10\n")
    assert study.main([str(file), "--results"]) == 2
    assert "(evaluate was None, now ['--beam', '10'])" in capsys.readouterr().err


def test_value_with_many_digits_is_that_of_its_runs(file: Path, tmp_path: Path) -> None:
    file.write_text(
        TEXT.replace("arms: [sas], seeds: 1, at: baseline", "arms: [base, sas], seeds: 2, at: 0.00069877124")
    )
    trial, folder = plan.read_study(file), tmp_path / "trial"
    all_kept(folder, trial)
    rows = results.build_results(trial, kept.load_notes(trial, file, folder), folder)["rows"]
    found = [(row["arm"], row["seeds"]) for row in rows if row["at"] == "0.000698771"]
    assert found == [("base", [1, 2]), ("sas", [1, 2])]


def test_runs_on_different_data_are_refused(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read_study(file)
    for seed, data in ((1, "aaaa"), (2, "bbbb")):
        keep(tmp_path / "trial", Planned("flat", "base", 0.001, seed), 3.0, trial, data=data)
    assert study.main([str(file), "--plan"]) == 2
    assert "flat.base.0.001.seed2: was scored on different data than" in capsys.readouterr().err


def test_partially_kept_run_is_ignored(file: Path, tmp_path: Path) -> None:
    trial = plan.read_study(file)
    keep(tmp_path / "trial", Planned("flat", "base", 0.001, 1), 3.0, trial)
    os.rename(tmp_path / "trial" / "flat.base.0.001.seed1", tmp_path / "trial" / "flat.base.0.001.seed1.partial")
    assert kept.load_notes(trial, file, tmp_path / "trial") == {}


def test_arm_that_always_diverges_is_reported(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read_study(file)
    for value in (0.001, 0.002, 0.004, 0.0005, 0.00025, 0.000125):
        keep(tmp_path / "trial", Planned("flat", "sas", value, 100, True), 3.0, trial, outcome="diverged", valid={})
    assert study.main([str(file), "--plan"]) == 1
    said = capsys.readouterr()
    assert "sas in flat: diverges at every value of --lr" in said.err
    assert "and 7 that depend on tuning" in said.out  # the runs of base, and all runs in deep


def test_folders_of_another_study_are_refused(file: Path, tmp_path: Path, capsys: Capture) -> None:
    trial = plan.read_study(file)
    keep(tmp_path / "trial", Planned("flat", "base", 0.001, 100, True), 3.0, trial, study="other")
    assert study.main([str(file), "--plan"]) == 2
    assert "contains flat.base.0.001.tuning of the study other, not of trial" in capsys.readouterr().err
    StudyFolders(file.with_name("other.yaml"), tmp_path / "work", tmp_path).claim()
    assert study.main([str(file), "--work", str(tmp_path / "work"), "--kept", str(tmp_path / "none")]) == 2
    assert "work: contains runs of the study other, not of trial" in capsys.readouterr().err


def test_kept_files_contain_no_local_paths(tmp_path: Path) -> None:
    run = Run(tmp_path / "secret-place" / "run")
    run.decode.mkdir(parents=True)
    session = {"started": "now", "commit": None, "hardware": {"cpu": "c", "cores": 1, "gpus": []}, "versions": {}}
    command = ["fairseq-train", "data", "--save-dir", str(run.path), "--user-dir", "/secret-place/x", "--lr", "1"]
    records.write(run.record, {"command": command, "finished": True, "sessions": [session]})
    line = '2026-01-01 00:00:00 | INFO | train | {"num_updates": "3", "loss": "4"}\n'
    run.train_log.write_text(f"config: {tmp_path}/secret-place\n{line}")
    (run.decode / "test.averaged.hyp").write_text("Ein Satz.\n")
    (run.path / "checkpoint_last.pt").write_bytes(b"weights")
    target = tmp_path / "kept" / "run"
    (target / "old").mkdir(parents=True)
    kept.keep_run(run, note(Planned("flat", "base", 0.1, 1), 2.0), target)
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == ["decode/test.averaged.hyp.gz", "run.json", "study.json", "train.log.gz"]
    for path in target.rglob("*.gz"):
        assert b"secret-place" not in gzip.decompress(path.read_bytes())
    assert "secret-place" not in (target / "run.json").read_text()
    assert list(Run(target).log_records()) == [{"num_updates": "3", "loss": "4"}]
    assert read_lines(Run(target).decode / "test.averaged.hyp") == ["Ein Satz."]
    assert not list((tmp_path / "kept").glob("*.partial"))
