"""Training on images: learning, resuming, several processes, workers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

import fairseq_resid.models  # noqa: F401  (patches fairseq)
from fairseq_resid.__main__ import main
from fairseq_resid.runs.run import Run
from support import training_here
from support.image_models import FLAGS, train
from support.trainings import reopen, weights

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]


@pytest.mark.both
def test_amp_step_uses_the_unscaled_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses SGD because its step reveals the scale of the gradient, unlike Adam's."""
    from fairseq.optim.amp_optimizer import AMPOptimizer
    from fairseq.optim.sgd import SGD

    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda **given: torch.amp.GradScaler("cpu", **given))
    weight = nn.Parameter(torch.ones(1))
    of = Namespace(lr=[0.1], momentum=0.9, weight_decay=0.0)
    common = Namespace(fp16_init_scale=128, amp_scale_window=None, min_loss_scale=1e-4)
    optimizer = AMPOptimizer(Namespace(optimizer=of, common=common), [weight], SGD(of, [weight]))
    optimizer.backward(3 * weight.sum())
    assert float(optimizer.clip_grad_norm(0.0)) == pytest.approx(3)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 3)


@pytest.mark.both
def test_training_logs_error_and_learning_rates(runs: list[Path]) -> None:
    records_of = [row for row in Run(runs[1]).log_records() if "valid_error" in row]
    assert float(records_of[-1]["valid_error"]) + float(records_of[-1]["valid_accuracy"]) == pytest.approx(
        100, abs=0.02
    )
    assert any("alpha.stage2.0.conv" in row for row in Run(runs[1]).log_records())
    summary = Run(runs[0]).training_summary()
    assert summary.unit == "images" and summary.num_updates == 12 and summary.target_tokens == 384
    rates = {row["num_updates"]: float(row["lr"]) for row in Run(runs[0]).log_records() if "lr" in row}
    assert rates["6"] == 0.05 and rates["10"] == 0.005


@pytest.mark.both
def test_resuming_is_bitwise_equal(recipe: Path, runs: list[Path], tmp_path: Path) -> None:
    halves = tmp_path / "halves"
    assert train(recipe, halves, "--residual", "xskip", "--max-update", "7") == 0
    reopen(halves, 7, 12)
    assert train(recipe, halves, "--residual", "xskip", "--max-update", "12") == 0
    assert all(torch.equal(weights(halves)[name], expected) for name, expected in weights(runs[0]).items())


def test_two_processes_train_one_model(recipe: Path, tmp_path: Path) -> None:
    """Weights must not be channels-last in memory, because fairseq's legacy_ddp could not flatten their gradients."""
    run = tmp_path / "two"
    record = training_here.train_in_two_processes(recipe, run, "--arch", "preact_resnet20", "--residual", "sas")
    assert record["plan"]["batch-size"] == 16 and record["plan"]["effective batch"] == 32
    assert Run(run).training_summary().num_updates == 12


@pytest.mark.both
def test_data_workers_change_nothing_and_end_with_their_epoch(data: Path, runs: list[Path], tmp_path: Path) -> None:
    watched = (
        "import os\nfrom fairseq_resid.tasks.images import ImageClassificationTask as Task\nbegin = Task.begin_epoch\n"
        "def counted(self, epoch, model):\n    begin(self, epoch, model)\n    me = os.getpid()\n"
        "    print('CHILDREN', len(open(f'/proc/{me}/task/{me}/children').read().split()), flush=True)\n"
        "Task.begin_epoch = counted\nfrom fairseq_cli.train import cli_main\ncli_main()\n"
    )
    flags = f"{data} --user-dir fairseq_resid --arch preact_resnet20 --residual xskip {FLAGS} --num-workers 2"
    command = [sys.executable, "-c", watched, *shlex.split(flags), "--save-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert all(torch.equal(weights(tmp_path)[name], expected) for name, expected in weights(runs[0]).items())
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("CHILDREN")]
    # Two workers serve training, two validation, and two may be ending. If each epoch leaked them, there would be 14.
    assert len(counts) == 4 and max(counts) <= 8 and "AssertionError" not in done.stderr


def test_fully_connected_network_is_trained_evaluated_and_analysed(data: Path, tmp_path: Path, capsys: Capture) -> None:
    recipe, run = tmp_path / "fc.txt", tmp_path / "run"
    recipe.write_text(f"{data}\n{FLAGS.replace('--stage-blocks 1,1,1', '--hidden-width 16')}\n")
    flags = ["--arch", "rir_fc", "--residual", "sas", "--log-coefficients"]
    assert training_here.train(recipe, run, *flags) == 0
    assert main(["evaluate", str(run), "--cpu"]) == 0
    assert "test: error" in capsys.readouterr().out
    assert main(["analyze", str(run), "--sentences", "8", "--cpu"]) == 0
    sites = json.loads((run / "analysis" / "analysis.json").read_text())["sites"]
    assert len(sites) == 4 and "rir_fc --residual sas" in (run / "results.json").read_text()


def test_evaluation_marks_subsets_used_in_training(recipe: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "all"
    flags = ["--train-subset", "train+valid", "--valid-subset", "test", "--stage-channels", "8,8,8"]
    assert train(recipe, run, *flags) == 0
    assert Run(run).training_summary().best_valid_loss is not None
    assert main(["evaluate", str(run), "--cpu"]) == 0
    said = capsys.readouterr().out
    assert "all valid (training data): error" in said and "all test: error" in said
    assert "| valid (trained on), 24 | error |" in (run / "card.md").read_text()
    assert main(["analyze", str(run), "--sentences", "8", "--no-ablation", "--cpu"]) == 0
    assert "on 8 images of valid (training data)" in capsys.readouterr().out
