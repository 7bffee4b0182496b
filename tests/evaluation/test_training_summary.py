"""The training summary computed from train.log: updates, seconds, tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.files import read_lines
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.training_log import Explosion
from support.evaluation import MODEL

pytestmark = pytest.mark.once

FIRST = [  # one process; records of epoch 2 appear twice, because fairseq adds a log handler per epoch
    "{'_name': None, 'common': {'log_format': 'json'}}",
    '{"epoch": 1, "update": 0.4, "loss": "9", "wpb": "90", "num_updates": "4", "train_wall": "0", "wall": "3"}',
    '{"epoch": 1, "valid_loss": "5.5", "valid_num_updates": "10", "valid_best_loss": "5.5"}',
    '{"epoch": 1, "train_loss": "6", "train_ups": "0.5", "train_wpb": "100", "train_num_updates": "10", '
    '"train_train_wall": "12", "train_wall": "15"}',
    *['{"epoch": 2, "valid_loss": "4.5", "valid_num_updates": "15"}'] * 2,
    *[
        '{"epoch": 2, "train_loss": "5", "train_ups": "1", "train_wpb": "120", "train_num_updates": "15", '
        '"train_train_wall": "5", "train_wall": "20"}'
    ]
    * 2,
]
RESUMED = [  # in mid-epoch 2: the checkpoint contains the epoch's meters, so the record covers all ten updates
    '{"epoch": 2, "valid_loss": "4.75", "valid_num_updates": "20"}',
    '{"epoch": 2, "train_loss": "5", "train_ups": "1", "train_wpb": "110", "train_num_updates": "20", '
    '"train_train_wall": "10", "train_wall": "0"}',
    '{"epoch": 3, "loss": "9", "wpb": "90", "num_updates": "24", "train_wall": "0"',  # truncated by a kill
]


@pytest.fixture
def logged(tmp_path: Path) -> Callable[[list[str]], Any]:
    def summarise(lines: list[str]) -> Any:
        run = Run(tmp_path)
        run.train_log.write_text("\n".join(lines))
        return run.training_summary()

    return summarise


def test_training_summary_counts_updates_tokens_and_seconds(logged: Callable[[list[str]], Any]) -> None:
    summary = logged(FIRST)
    assert (summary.num_updates, summary.epochs, summary.best_valid_loss) == (15, 2, 4.5)
    assert summary.target_tokens == 10 * 100 + 5 * 120
    # 10 updates at 0.5/s take 20 s, including validation, but the training time, rounded to 12 s, is at most 12.5 s.
    # 5 updates at 1/s take 5 s.
    assert summary.train_seconds == 12.5 + 5
    assert summary.tokens_per_second == pytest.approx(1600 / 17.5, abs=0.05)


def test_training_summary_counts_a_resumed_epoch_once(logged: Callable[[list[str]], Any]) -> None:
    summary = logged(FIRST + RESUMED)
    assert (summary.num_updates, summary.epochs, summary.best_valid_loss) == (20, 2, 4.5)
    assert summary.target_tokens == 10 * 100 + 10 * 110
    assert summary.train_seconds == 12.5 + 10


def test_training_summary_counts_a_restarted_run_once(logged: Callable[[list[str]], Any]) -> None:
    again = logged(FIRST + FIRST[:4])
    assert (again.num_updates, again.epochs, again.best_valid_loss, again.target_tokens) == (10, 1, 5.5, 1000)


def test_summary_of_a_continued_run_counts_its_own_updates(logged: Callable[[list[str]], Any]) -> None:
    """The other run stopped in mid-epoch 2, so the record of this epoch has the tokens and the seconds of both."""
    loaded = "2026-11-29 06:51:16 | INFO | fairseq.trainer | Loaded checkpoint {} (epoch 2 @ {} updates)"
    saved = "2026-11-29 06:51:16 | INFO | fairseq.trainer | Saving checkpoint to /run/checkpoint_2_16.pt"
    lines = [
        loaded.format("other/checkpoint_last.pt", 15),
        saved,
        '{"epoch": 2, "train_ups": "2.5", "train_wpb": "100", "train_num_updates": "20", "train_train_wall": "9"}',
        loaded.format("run/checkpoint_last.pt", 20),
        '{"epoch": 3, "train_ups": "2", "train_wpb": "110", "train_num_updates": "28", "train_train_wall": "4"}',
    ]
    summary = logged(lines)
    assert (summary.num_updates, summary.started_at) == (28, 15)
    assert summary.target_tokens == 5 * 100 + 8 * 110
    assert summary.train_seconds == 5 / 2.5 + 8 / 2
    assert summary.tokens_per_second == pytest.approx(1380 / 6, abs=0.05)


def test_training_summary_is_none_without_records(logged: Callable[[list[str]], Any], tmp_path: Path) -> None:
    empty = logged([])
    assert empty.num_updates is empty.tokens_per_second is empty.best_valid_loss is None
    (tmp_path / "train.log").unlink()
    assert Run(tmp_path).training_summary() == empty
    running = logged(FIRST[:2])
    assert running.num_updates == 4 and running.tokens_per_second is None
    nan = logged([line.replace("5.5", "nan") for line in FIRST[:3]])
    assert nan.best_valid_loss is None


def norms(*values: str) -> list[str]:
    return [f'{{"epoch": 1, "gnorm": "{value}", "num_updates": "{5 * k}"}}' for k, value in enumerate(values, start=1)]


def test_explosion_is_the_largest_norm_far_above_the_median(logged: Callable[[list[str]], Any]) -> None:
    assert logged(norms("3", "0.5", "0.5", "50")).explosion is None  # exactly 100 times the median
    usual = ["3", *["0.5"] * 5]
    assert logged(norms(*usual, "inf", "60", "51")).explosion == Explosion(60.0, 40, 0.5)
    assert logged(norms(*usual, "60", "nan", "300")).explosion == Explosion(300.0, 45, 0.5)
    assert str(Explosion(13863.8, 2275, 0.532)) == "norm 13,864 at update 2,275, median 0.53"
    assert str(Explosion(46319600.0, 2700, 0.566)) == "norm 4.6e+07 at update 2,700, median 0.57"
    assert logged(norms("0", "0", "5")).explosion is logged(norms("nan")).explosion is None
    # Training was restarted from update 10 and went better.
    assert logged([*norms("0.5", "0.5", "0.5", "500"), *norms("0.5", "0.5", "0.5")[2:]]).explosion is None


@pytest.mark.both
def test_continued_run_reports_its_own_speed(here: Run, tmp_path: Path, cli: Callable[..., Any]) -> None:
    """Its first run stopped in the middle of an epoch."""
    run = Run(tmp_path / "run")
    flags = f"{MODEL} --max-update 15 --no-epoch-checkpoints --log-format json"
    out = cli("fairseq-train", "data", *flags.split(), "--save-dir", run.path, "--restore-file", here.last).output
    run.train_log.write_text(out)
    summary = run.training_summary()
    (epoch,) = (json.loads(line[line.index("{") :]) for line in out.splitlines() if '"train_wpb"' in line)
    assert (summary.num_updates, summary.started_at) == (15, 12)
    assert summary.target_tokens == round(3 * float(epoch["train_wpb"]))
    assert summary.tokens_per_second == pytest.approx(float(epoch["train_wps"]), rel=0.1)


@pytest.mark.both
def test_training_summary_matches_a_real_run(here: Run) -> None:
    summary = here.training_summary()
    assert summary.num_updates == 12
    # An epoch has 60 sentences, with two subwords per word and an EOS.
    targets = read_lines(Path("raw/train.fr"))
    epoch = sum(len(line.split()) + 1 for line in targets)
    steps = [json.loads(line) for line in here.train_log.read_text().splitlines() if '"train_wpb"' in line]
    assert summary.target_tokens == pytest.approx(epoch * 12 / int(steps[0]["train_num_updates"]), rel=0.2)
    assert summary.train_seconds and summary.train_seconds < 60
