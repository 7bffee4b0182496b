"""A complete study of two short training runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fairseq_resid import records
from fairseq_resid.runs.run import Run
from fairseq_resid.scoring import likelihood
from fairseq_resid.study import kept, study, work
from fairseq_resid.study.kept import Note
from support.studies import FLAGS, REAL, written

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


@pytest.mark.both
def test_small_study_runs_end_to_end(
    corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study trains, evaluates, analyses and keeps runs; NLL equals fairseq's, and divergence is a result."""
    (tmp_path / "recipe.txt").write_text(FLAGS)
    path = written(tmp_path, REAL.format(recipe=tmp_path / "recipe.txt", data=corpus), "real")
    monkeypatch.setattr(study, "POLL", 0.1)
    words = [str(path), "--work", str(tmp_path / "work"), "--weights"]
    # The first run is executed in this process, and the second in one that the command starts.
    assert study.main([*words, "--only", "recipe.base.seed1"]) == 0
    assert study.main(words) == 0, "".join(log.read_text() for log in (tmp_path / "work" / "logs").glob("*"))
    assert "recipe.wild.seed1: diverged" in capsys.readouterr().out
    kept_run = Run(tmp_path / "real" / "recipe.base.seed1")
    made = records.read(kept.note_file(kept_run.path), Note)
    sentences = likelihood.Sentence.read(kept_run.decode / "test.averaged.nll")
    assert made.scores["averaged"]["NLL"].score == pytest.approx(likelihood.mean(sentences), abs=1e-4)
    found = kept_run.read_results().scores["averaged"]
    assert found["NLL"].score == pytest.approx(likelihood.mean(sentences), abs=1e-4)
    # fairseq's NLL: the unsmoothed loss of the last validation, in bits.
    logged = [float(row["valid_nll_loss"]) for row in kept_run.log_records() if "valid_nll_loss" in row]
    assert made.valid["last"] == pytest.approx(logged[-1] * math.log(2), abs=2e-3)
    assert (kept_run.path / "analysis" / "analysis.json").is_file() and not list(kept_run.path.glob("*.pt"))
    assert (tmp_path / "work" / "recipe.base.seed1" / "averaged.pt").is_file()
    row = {each["arm"]: each for each in json.loads((tmp_path / "real" / "results.json").read_text())["rows"]}
    assert row["wild"]["diverged"] == [1] and row["base"]["seeds"] == [1]
    assert "recipe | wild" in (tmp_path / "real" / "results.md").read_text()
    # Without --weights, the same command keeps these weights, and removes what a killed run did not.
    (tmp_path / "work" / f"recipe.base.seed2{work.UNWANTED}").mkdir()
    assert study.main([word for word in words if word != "--weights"]) == 0
    assert (tmp_path / "work" / "recipe.base.seed1" / "averaged.pt").is_file()
    assert not list((tmp_path / "work").glob("recipe.base.seed2*"))
