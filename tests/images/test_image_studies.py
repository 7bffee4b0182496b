"""Studies of image models: their measures, a whole study, refused measures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_resid.__main__ import main
from fairseq_resid.runs.run import Run
from fairseq_resid.scoring import kinds
from fairseq_resid.scoring.images import Answer
from support import training_here

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_image_measures_are_means_over_images(tmp_path: Path) -> None:
    given = [
        Answer(0, 0, 0.5),
        Answer(1, 2, 2.0),
        Answer(2, 2, 0.5),
        Answer(2, 0, 3.0),
    ]
    (tmp_path / "decode").mkdir()
    Answer.write(Run(tmp_path).decoded("test", "last", "images"), given)
    for name, expected in (("error", 50.0), ("NLL", 1.5)):
        measure = kinds.of_measure("error").studied.measures[name]
        assert measure.score(np.array(measure.parts(Run(tmp_path), "test")).sum(axis=0)) == pytest.approx(expected)


def test_each_measure_is_scored_on_its_own_test_sets(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.decode.mkdir()
    for subset, predicted, nll in (("test", 1, 0.5), ("valid", 0, 1.5)):
        Answer.write(run.decoded(subset, "last", "images"), [Answer(1, predicted, nll)] * 4)
    jobs = [SimpleNamespace(run=run, subset=subset) for subset in ("test", "valid")]
    tests = {"error": ("test",), "NLL": ("test", "valid")}
    scores = kinds.of_measure("error").score_together(jobs, "last", tests)
    assert (scores["error"].score, scores["NLL"].score) == (0.0, 1.0)


def test_image_study_runs_end_to_end(recipe: Path, tmp_path: Path) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text(
        f"title: Farm\nrecipe: {recipe}\nmeasure: error\nanalyze: 1\nflags: --arch preact_resnet20\nbaseline: plain\n"
        "arms: {plain: --residual xskip, recursive: --residual rskip_ln}\ntests: {error: [test], NLL: [test, valid]}\n"
        "plan: [{setting: recipe, arms: [plain], seeds: 2}, {setting: recipe, arms: [recursive], seeds: 1}]\n"
    )
    runs = ("recipe.plain.seed1", "recipe.plain.seed2", "recipe.recursive.seed1")
    training_here.study(file, tmp_path / "work", *runs)
    page = (tmp_path / "farm" / "results.md").read_text()
    assert "## error minus the baseline's" in page and "Test sets: test, 40 images" in page
    assert "| recipe | recursive |" in page and "BLEU" not in page
    assert (tmp_path / "farm" / "recipe.plain.seed1" / "analysis" / "analysis.json").is_file()
    assert not (tmp_path / "farm" / "recipe.plain.seed2" / "analysis").exists()


def test_tuning_on_training_data_is_refused(recipe: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text(
        f"title: Farm\nrecipe: {recipe}\nmeasure: error\nflags: --arch preact_resnet20 --train-subset train+valid\n"
        "baseline: plain\narms: {plain: --residual xskip}\nplan: [{setting: recipe, arms: [plain], seeds: 1}]\n"
        "tuning: {flag: --lr, grid: [0.1, 0.2], seed: 9}\n"
    )
    assert main(["study", str(file), "--work", str(tmp_path / "work")]) == 2
    assert "tuning: valid: is in --train-subset too" in capsys.readouterr().err
