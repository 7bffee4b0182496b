"""Study files: errors, flags and order of runs, tuning."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs, to_builtins

from fairseq_resid import records
from fairseq_resid.files import sha256
from fairseq_resid.runs.training_command import TrainingCommand
from fairseq_resid.study import archive, plan, results, study
from fairseq_resid.study.plan import Planned
from fairseq_resid.study.work import StudyFolders
from support.studies import FLAGS, REAL, TEXT, written

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


def test_documented_plan_is_valid_and_every_key_is_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "studies.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    path = written(tmp_path, text)
    plan.check_study(plan.read_study(path), path)
    section = page[page.index("## Your own study") : page.index("## How results are computed")]
    keys = {name for kind in (plan.Study, plan.Tuning, plan.PlanStep) for name in kind.__struct_fields__}
    assert not {key for key in keys if f"`{key}`" not in section}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("baseline: base", "baseline: nobody", "baseline: nobody: no such arm; choose from base, sas"),
        ("seed: 100", "seed: 2", "tuning: seed: 2: plan, 1 uses this seed too"),
        ("tests: [test, test1]", "tests: []", "tests: no test set"),
        ("tests: [test, test1]", "tests: [test, test]", "tests: test, test: must be one or more different"),
        ("[deep sas, flat", "[deep sas, flat base, flat", "contrasts, 1: 3 groups: must be 2 or 4"),
        ("[deep sas,", "[deep sars,", "contrasts, 1: deep sars: must be SETTING ARM [VALUE]; the plan has flat base, "),
        ("tuning:", "tuning: null\n#", "plan, 3: at: baseline: needs `tuning`"),
        ("  sas: --", "  s/s: --", "'s/s': names of arms and settings may only contain letters"),
    ],
)
def test_wrong_study_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    written(tmp_path, TEXT, "other")
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ValueError, match="trial.yaml: .*" + message.replace("[", r"\[")):
        plan.read_study(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"average": 5}, "average: 5: must be 10"),
        ({"tests": ("test",)}, "tests: test: must include test1"),
        ({"recipe": "multi30k-en-de-published"}, "evaluation flags of its recipe: --by epoch .*: must be no flags"),
        ({"measure": "error"}, "measure: error: must be NLL or BLEU"),
    ],
)
def test_contrast_with_a_study_that_is_scored_differently_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, TEXT.replace("[deep sas,", "[other/deep sas,"))
    other = structs.replace(records.read(written(tmp_path, TEXT, "other"), plan.Study), **change)
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(to_builtins(other)))
    with pytest.raises(ValueError, match=f"trial.yaml: contrasts: other: {message}"):
        plan.read_study(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--residual sas", "--residual sas --sas-gat single", "sas in flat: --sas-gat: fairseq-train has no such flag"),
        ("--residual sas", "--residual sas --skip-lambda 3", "sas in flat: .*skip.lambda"),
        ("--arch transformer_resid", "--log-interval 9", "base in flat: arm base: no architecture; add --arch"),
        ("recipe: quickstart", "recipe: quikstart", "base in flat: quikstart: no such recipe or file; did you mean"),
    ],
)
def test_unknown_flags_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ValueError, match="trial.yaml: " + message):
        plan.check_study(plan.read_study(path), path)


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, with a tolerance for differences between CPUs."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == pytest.approx(other, rel=1e-6, abs=1e-9)) if isinstance(one, float) else bool(one == other)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies_have_valid_flags_and_results(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All flags of a study exist, and its kept runs and results match the study file."""
    monkeypatch.chdir(tmp_path)  # so that data in this checkout is ignored
    trial = plan.read_study(path)
    plan.check_study(trial, path)
    state = study.read_state(trial, StudyFolders(path, Path("none"), path.with_suffix("")))
    known = {run.name for run in plan.runs(trial, state.nll())}
    assert not set(state.notes) - known
    if any(not note.run.is_tuning for note in state.notes.values()):  # before that, there are no results
        folder = path.with_suffix("")
        found = results.build_results(
            trial, state.notes, archive.runs_folder(folder), results.other_studies(trial, path, state.notes)
        )
        if archive.runs_folder(folder) != folder:
            found["archive"] = sha256(archive.archive_file(folder))
        committed = json.loads((folder / "results.json").read_text())
        assert same(json.loads(records.text(found)), committed), f"run fairseq-resid study {path} --results"
        assert found["missing"] == [name for name in found["missing"] if name not in state.notes]


def test_activation_experiments_have_both_networks_of_he_2016b() -> None:
    """Table 2 of the paper compares five orders of a block, in ResNet-110 and in ResNet-164."""
    trial = plan.read_study(ROOT / "studies" / "cifar10-shortcuts.yaml")
    found = [(arch, *flags) for arch, flags in (plan.arguments(trial, run) for run in plan.runs(trial, {}))]
    plain = [flags for flags in found if flags[-4:-2] == ("--residual", "xskip")]
    orders = {(flags[0], flags[flags.index("--block-order") + 1]) for flags in plain}
    names = ("original", "bn_after_add", "relu_before_add", "relu_preact", "full_preact")
    assert orders == {(f"preact_resnet{depth}", order) for depth in (110, 164) for order in names}
    assert len(plain) == 5 * len(orders) and len(found) == 85
    assert all(flags[1:3] == ("--weight-decay", "0.0001") for flags in found)


def test_flags_of_a_run_combine_recipe_setting_and_arm(file: Path) -> None:
    trial = plan.read_study(file)
    plan.check_study(trial, file)
    arch, flags = plan.arguments(trial, Planned("deep", "sas", 0.004, 7))
    assert arch == "transformer_resid"
    assert flags == ["data-bin/trial", "--encoder-layers", "3", "--residual", "sas", "--lr", "0.004", "--seed", "7"]
    arch, flags = plan.arguments(trial, Planned("deep", "sas", 0.004, 100, True))
    # A quarter of the recipe's 504 updates.
    assert flags[5:] == ["--max-update", "126", "--keep-interval-updates", "3", "--lr", "0.004", "--seed", "100"]
    assert plan.flags_of(trial, Planned("flat", "base", 0.001, 1)).data == "data-bin/trial"


def test_backend_of_an_old_study_is_ignored_and_changes_nothing(file: Path) -> None:
    trial, run = plan.read_study(file), Planned("deep", "sas", 0.004, 7)
    old = structs.replace(trial, flags=f"{trial.flags} --residual-backend triton")
    assert plan.arguments(old, run) == plan.arguments(trial, run)
    compiled = plan.flags_of(structs.replace(trial, flags=f"{trial.flags} --residual-backend compile"), run)
    assert compiled.value("--residual-backend", "") == "compile"
    assert compiled.changes(plan.flags_of(trial, run)) == []


def tuning(**changes: Any) -> plan.Tuning:
    return plan.Tuning(**{"flag": "--lr", "grid": (1.0, 2.0, 4.0), "seed": 9, **changes})


@pytest.mark.parametrize(
    ("tried", "to_try", "best"),
    [
        ({}, (1.0, 2.0, 4.0), None),
        ({1.0: 3.0, 4.0: 2.0}, (2.0,), None),
        ({1.0: 3.0, 2.0: 1.0, 4.0: 2.0}, (), 2.0),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0}, (8.0,), None),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0, 8.0: 1.5}, (), 4.0),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0, 8.0: math.inf}, (), 4.0),
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0, 8.0: 0.5}, (16.0,), None),
        ({1.0: 1.0, 2.0: 2.0, 4.0: 3.0}, (0.5,), None),
        ({0.5: 1.5, 1.0: 1.0, 2.0: 2.0, 4.0: 3.0}, (), 1.0),
        ({1.0: math.inf, 2.0: math.inf, 4.0: math.inf}, (0.5,), None),
        ({0.25: 1.0, 0.5: math.inf, 1.0: math.inf, 2.0: math.inf, 4.0: math.inf}, (0.125,), None),
        ({0.125: math.inf, 0.25: math.inf, 0.5: math.inf, 1.0: math.inf, 2.0: math.inf, 4.0: math.inf}, (), None),
    ],
)
def test_tuning_extends_grid_until_best_is_inside(
    tried: dict[float, float], to_try: tuple[float, ...], best: float | None
) -> None:
    found = plan.choose_value(tuning(), tried)
    assert (found.to_try, found.best) == (to_try, best)


def test_tuning_stops_at_its_limits() -> None:
    assert plan.choose_value(tuning(most=4.0), {1.0: 3.0, 2.0: 2.0, 4.0: 1.0}).best == 4.0
    assert plan.choose_value(tuning(least=0.6), {1.0: 1.0, 2.0: 2.0, 4.0: 3.0}).best == 1.0


# In `flat`, 0.002 is the best value of base and 0.004 that of sas.
TUNED = {
    Planned("flat", arm, lr, 100, True): abs(lr - best)
    for arm, best in (("base", 0.002), ("sas", 0.0039))
    for lr in (0.001, 0.002, 0.004, 0.008)
}


def test_runs_are_ordered_by_tuning_and_seed(file: Path) -> None:
    trial = plan.read_study(file)
    names = [run.name for run in plan.runs(trial, {})]
    assert names[:3] == ["flat.base.0.001.tuning", "flat.base.0.002.tuning", "flat.base.0.004.tuning"]
    assert [name.split(".")[:2] for name in names[3::3]] == [["flat", "sas"], ["deep", "base"], ["deep", "sas"]]
    assert len(names) == 12 and plan.undetermined_runs(trial, {}) == 9
    names = [run.name for run in plan.runs(trial, TUNED)]
    # Runs are ordered by seed, so that arms can be compared early. A run that belongs to two steps is listed once.
    wanted = ["flat.base.0.002.seed1", "flat.sas.0.004.seed1", "flat.base.0.002.seed2", "flat.sas.0.004.seed2"]
    assert names[8:12] == wanted
    assert names[-1] == "flat.sas.0.002.seed1" and len(names) == len(set(names))
    assert plan.undetermined_runs(trial, TUNED) == 4


def test_flag_tuned_in_one_setting_has_the_same_value_in_all(tmp_path: Path) -> None:
    text = TEXT.replace("tuning: {", "tuning: {setting: flat, ")
    trial = plan.read_study(written(tmp_path, text))
    assert {run.setting for run in plan.runs(trial, {}) if run.is_tuning} == {"flat"}
    found = {(run.setting, run.arm, run.value) for run in plan.runs(trial, TUNED) if not run.is_tuning}
    assert {("deep", "base", 0.002), ("deep", "sas", 0.004)} < found
    assert plan.undetermined_runs(trial, TUNED) == 0


def test_additional_averages_must_be_kept_until_the_end() -> None:
    def check(flags: str) -> None:
        plan.check_windows(TrainingCommand.parse(flags.split()), ((11, 12), (23, 24)))

    check("--max-epoch 12 --keep-interval-updates 10")
    check("--max-epoch 36 --keep-interval-updates -1")
    with pytest.raises(ValueError, match="epochs: 11, 12: --keep-interval-updates deletes their checkpoints"):
        check("--max-epoch 36 --keep-interval-updates 10")


def test_study_without_tuning_needs_no_values(tmp_path: Path) -> None:
    lines = [line for line in TEXT.splitlines() if not re.search("tuning|baseline}|sas 0.002", line)]
    trial = plan.read_study(written(tmp_path, "\n".join(lines)))
    assert [run.name for run in plan.runs(trial, {})][:2] == ["flat.base.seed1", "flat.sas.seed1"]
    assert plan.undetermined_runs(trial, {}) == 0


def test_missing_test_set_is_reported_before_any_run(tmp_path: Path, corpus: Path) -> None:
    text = REAL.format(recipe=tmp_path / "recipe.txt", data=corpus).replace(
        "average: 2", "tests: [test, test7]\naverage: 2"
    )
    (tmp_path / "recipe.txt").write_text(FLAGS)
    path = written(tmp_path, text, "real")
    with pytest.raises(ValueError, match=r"base in recipe: tests: test7: reference text .*test7\.xx does not exist"):
        plan.check_study(plan.read_study(path), path)


UPDATES = "--save-interval-updates 10 --no-epoch-checkpoints"


@pytest.mark.parametrize(
    ("flags", "by", "kept"),
    [
        (f"{UPDATES} --keep-interval-updates 4", None, "--keep-interval-updates 4"),
        ("--keep-last-epochs 4", None, "--keep-last-epochs 4"),
        ("--max-epoch 4", None, "--max-epoch 4"),
        ("--save-interval-updates 10 --max-epoch 4", "epoch", "--max-epoch 4"),
        ("--save-interval-updates 10 --keep-interval-updates 4", "update", "--keep-interval-updates 4"),
        ("--save-interval-updates 10", None, "epoch- and update-numbered"),
    ],
)
def test_run_that_keeps_too_few_checkpoints_is_refused(flags: str, by: Any, kept: str) -> None:
    with pytest.raises(ValueError, match=f"average: .*{kept}"):
        plan.check_average(TrainingCommand.parse(flags.split()), 5, by)


@pytest.mark.parametrize(
    ("flags", "by"),
    [
        (f"{UPDATES} --keep-interval-updates 5 --max-epoch 1", None),
        (f"{UPDATES} --keep-interval-updates -1", None),
        ("--keep-last-epochs -1 --max-epoch 0 --keep-interval-updates 1", None),
        ("--save-interval-updates 10 --keep-interval-updates 1 --max-epoch 5", "epoch"),
    ],
)
def test_run_that_keeps_enough_checkpoints_is_accepted(flags: str, by: Any) -> None:
    plan.check_average(TrainingCommand.parse(flags.split()), 5, by)
