"""Scores of image models: error, NLL, comparison, intervals, the table."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from fairseq_resid.__main__ import main
from fairseq_resid.data.images.image_folder import ImageRecord
from fairseq_resid.runs.run import Run
from fairseq_resid.tasks.images import ImageDataset
from support.image_models import build, count
from support.trainings import weights

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


@pytest.mark.both
def test_scores_belong_to_the_last_checkpoint(data: Path, runs: list[Path], capsys: Capture) -> None:
    results = Run(runs[0]).read_results()
    model = build("preact_resnet20", classes=4, stage_blocks="1,1,1")
    model.load_state_dict(weights(runs[0]))
    dataset = ImageDataset(data, "test", ImageRecord.of(data), 1, False, 0, False)
    sample = dataset.collater(list(range(len(dataset))))
    with torch.no_grad():
        logits = model.eval()(sample["net_input"]["images"])
    wrong = 100 * float((logits.argmax(1) != sample["target"]).double().mean())
    assert results.scores["last"]["error"].score == pytest.approx(wrong)
    nll = float(nn.functional.cross_entropy(logits, sample["target"]))
    assert results.scores["last"]["NLL"].score == pytest.approx(nll, abs=2e-4)
    assert results.test_set == hashlib.sha256((data / "test.npy").read_bytes()).hexdigest()
    assert results.bleu is None and results.parameters == count(model)
    assert not (runs[0] / "averaged.pt").exists()
    assert main(["evaluate", str(runs[0]), "--cpu"]) == 0
    assert "made from the same files, reused" in capsys.readouterr().out
    assert "| test, 40 | error |" in (runs[0] / "card.md").read_text()


def test_image_runs_appear_in_compare_and_table(runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    assert main(["compare", *map(str, runs), "--markdown"]) == 0
    said = capsys.readouterr().out
    twin, other = tmp_path / "twin", tmp_path / "other"
    shutil.copytree(runs[0], twin)
    shutil.copytree(runs[0], other)
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**record, "command": [*record["command"], "--seed", "2"]}))
    assert main(["compare", str(runs[0]), str(twin)]) == 0
    assert "at least two have the same seed; no spread over seeds" in capsys.readouterr().out
    assert main(["evaluate", str(runs[0]), str(other), "--cpu", "--subset", "test"]) == 0
    assert "preact_resnet20 --residual xskip test, 2 seeds (xskip, other): error mean" in capsys.readouterr().out
    (other / "results.json").unlink()
    assert main(["compare", str(runs[0]), str(other)]) == 2
    assert "run fairseq-resid evaluate" in capsys.readouterr().err
    assert "| run | architecture | error % | difference | 95% interval | p McNemar |" in said
    assert main(["table", *map(str, runs), "--markdown"]) == 0
    assert "| error % | NLL | images/s |" in capsys.readouterr().out
