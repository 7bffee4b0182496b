"""Studies with a fixed value of the tuned flag, with test sets for each measure, or only with tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_resid.study import kept, plan
from fairseq_resid.study.plan import Planned

pytestmark = pytest.mark.once
STUDY: dict[str, Any] = {
    "title": "values",
    "recipe": "multi30k-en-de-small",
    "flags": "--arch transformer_resid",
    "baseline": "post_ln",
    "arms": {"post_ln": "--residual post_ln", "sas": "--residual sas"},
    "tuning": {"flag": "--lr", "grid": [0.0025, 0.01], "least": 0.0025, "most": 0.01, "seed": 100},
    "plan": [
        {"setting": "recipe", "arms": ["post_ln", "sas"], "seeds": 2, "at": "5e-3"},
        {"setting": "recipe", "arms": ["post_ln", "sas"], "seeds": 0},
    ],
}


def read(tmp_path: Path, **changes: Any) -> plan.Study:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return plan.read_study(path)


def test_fixed_value_needs_no_tuning_and_tuning_needs_no_seeds(tmp_path: Path) -> None:
    study = read(tmp_path)
    assert [run.name for run in plan.runs(study, {})] == [
        "recipe.post_ln.0.005.seed1",
        "recipe.sas.0.005.seed1",
        "recipe.post_ln.0.005.seed2",
        "recipe.sas.0.005.seed2",
        "recipe.post_ln.0.0025.tuning",
        "recipe.post_ln.0.01.tuning",
        "recipe.sas.0.0025.tuning",
        "recipe.sas.0.01.tuning",
    ]
    assert plan.undetermined_runs(study, {}) == 0
    tuned = {Planned("recipe", "sas", value, 100, True): value for value in (0.0025, 0.01)}
    # `least` and `most` prevent tuning beyond these two values.
    assert len(list(plan.runs(study, tuned))) == 8
    assert plan.arguments(study, Planned("recipe", "sas", 0.005, 1))[1][-4:] == ["--lr", "0.005", "--seed", "1"]


def step(arms: list[str], seeds: int, at: str | float) -> list[dict[str, Any]]:
    return [{"setting": "recipe", "arms": arms, "seeds": seeds, "at": at}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": None}, "at: 0.005: needs `tuning`"),
        ({"tests": {"BLEU": ["test"]}}, "tests: BLEU: must be one list for each of NLL and BLEU"),
        ({"tests": {"BLEU": ["test"], "NLL": []}}, "tests: no test set"),
        ({"epochs": [5, 4]}, "epochs: 5, 4: must be two epochs"),
        ({"epochs": [5]}, "epochs: 5: must be two epochs"),
        ({"epochs": [5, [6, 7]]}, r"epochs: 5, \(6, 7\): must be two epochs"),
        ({"epochs": [[1, 2], [4, 3]]}, r"epochs: \(1, 2\), \(4, 3\): must be two epochs"),
        ({"contrasts": [["recipe sas 0.05", "recipe post_ln"]]}, "the plan runs sas in recipe at 0.005 only"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, **changes)


def test_group_without_a_value_is_at_the_only_planned_one(tmp_path: Path) -> None:
    study = read(tmp_path, contrasts=[["recipe sas", "recipe post_ln 0.005"]])
    assert [plan.group(study, text).value for text in study.contrasts[0]] == [0.005, 0.005]
    two = read(tmp_path, plan=[*step(["post_ln", "sas"], 1, "5e-3"), *step(["post_ln", "sas"], 1, "1e-2")])
    with pytest.raises(ValueError, match=r"at 0\.005 or 0\.01 only; add one of these values"):
        plan.group(two, "recipe sas")


@pytest.mark.parametrize(
    ("arm", "flag"), [("--lr 1e-3", "--lr: set by `tuning`"), ("--seed 7", "--seed: set by `plan`")]
)
def test_flags_that_the_study_sets_are_refused_in_arms(tmp_path: Path, arm: str, flag: str) -> None:
    study = read(tmp_path, arms={**STUDY["arms"], "sas": f"--residual sas {arm}"})
    with pytest.raises(ValueError, match=flag):
        plan.arguments(study, Planned("recipe", "sas", 0.005, 1))


def test_runs_scored_with_different_recipe_or_epochs_are_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.txt"
    recipe.write_text("data --max-update 10\n[evaluate]\n--beam 5\n")
    study = read(tmp_path, recipe=str(recipe), epochs=[2, 3])
    run = Planned("recipe", "sas", 0.005, 1)
    terms = kept.scoring_terms(study, run)
    assert terms["evaluate"] == ["--beam", "5"] and terms["epochs"] == [2, 3]
    pairs = read(tmp_path, recipe=str(recipe), epochs=[[2, 3], [5, 6]])
    assert pairs.windows == ((2, 3), (5, 6)) and kept.scoring_terms(pairs, run)["epochs"] == [[2, 3], [5, 6]]
    terms = kept.scoring_terms(study, Planned("recipe", "sas", 0.01, 100, True))
    assert terms["evaluate"] == ["--beam", "5"] and "epochs" not in terms
