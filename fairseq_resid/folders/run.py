"""The run folder: what is in it, written once, read by training, evaluation, analysis and report.

RUN/checkpointN.pt, checkpoint_E_U.pt      fairseq's, at the end of epoch N, and in epoch E at update U
RUN/checkpoint_best.pt, checkpoint_last.pt fairseq's copies
RUN/run.json                               the training's command, plan, versions, commit, hardware, whether it finished
RUN/train.log                              fairseq-train --log-format json --log-file RUN/train.log
RUN/averaged.pt                            the average of the last numbered checkpoints
RUN/decode/SUBSET.{averaged,last}.{log,hyp,json}
                                           fairseq-generate's output, its hypotheses, what they were made from
RUN/results.json                           what evaluation found on the test set (results.SUBSET.json on another)
RUN/card.md                                all of this on a page
"""

from __future__ import annotations

import fcntl
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Numbering = Literal["epoch", "update"]
NUMBERED = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


@dataclass(frozen=True)
class TrainingSummary:
    """What train.log says of a training, resumed ones taken together; None where the log does not say it.

    train_seconds: time inside training steps; not validation, saving or start-up
    target_tokens: target tokens trained on, end-of-sentence marks included
    """

    num_updates: int | None
    epochs: int | None
    train_seconds: float | None
    target_tokens: int | None
    tokens_per_second: float | None
    best_valid_loss: float | None


@dataclass(frozen=True)
class Run:
    """A training run's folder: the path of everything in it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def train_log(self) -> Path:
        return self.path / "train.log"

    @property
    def last(self) -> Path:
        return self.path / "checkpoint_last.pt"

    @property
    def averaged(self) -> Path:
        return self.path / "averaged.pt"

    @property
    def decode(self) -> Path:
        return self.path / "decode"

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def card(self) -> Path:
        return self.path / "card.md"

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Hold the folder for one training or evaluation; yields the lock's file descriptor, for its commands.

        Raises: ValueError where another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{self.path}: another training or evaluation is at work in it") from None
            yield file.fileno()

    def results(self, subset: str = "test") -> Path:
        return self.path / ("results.json" if subset == "test" else f"results.{subset}.json")

    def numbered(self, by: Numbering) -> list[Path]:
        """Return the epoch- or update-numbered checkpoints, oldest first; best and last never count."""
        found = [(match, file) for file in self.path.iterdir() if (match := NUMBERED[by].fullmatch(file.name))]
        return [file for _, file in sorted((int(match[1]), file) for match, file in found)]

    def log_records(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON records of train.log in order, each once.

        fairseq adds one more handler for the file each epoch, so that a record of a process's k-th epoch stands there
        k times; the file also holds other messages. Values are strings, rounded; epoch and update are numbers.
        """
        if not self.train_log.is_file():
            return
        previous = ""
        with self.train_log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("{") and line != previous:
                    try:
                        record = json.loads(line)
                    except ValueError:  # the configuration, printed as a Python dict; a line cut off by a kill
                        continue
                    previous = line
                    yield record

    def training_summary(self) -> TrainingSummary:
        """Read from train.log how much was trained, how fast, and the best validation loss.

        Tokens are the sum over epochs of train_wpb (target tokens per update) times updates. Seconds are the sum of
        train_train_wall, which fairseq rounds to whole seconds per epoch; what rounding took is recovered from
        train_ups (updates per second, validation included) as far as that stays within the rounding.
        An epoch in which training was resumed is reported twice, the second time as a whole (its meters are in the
        checkpoint); a training that went back to an older checkpoint replaces what came after it.
        """
        epochs: dict[int, dict[str, Any]] = {}
        losses: dict[int, float] = {}
        num_updates = None
        for record in self.log_records():
            updates = next((int(record[key]) for key in record if key.endswith("num_updates")), None)
            if updates is None:
                continue
            num_updates = updates
            losses = {at: loss for at, loss in losses.items() if at <= updates}
            if "train_num_updates" in record:
                epochs = {number: kept for number, kept in epochs.items() if number < record["epoch"]}
                epochs[record["epoch"]] = record
            elif "valid_loss" in record:
                losses[updates] = float(record["valid_loss"])

        tokens = seconds = 0.0
        done = 0
        for record in epochs.values():
            added = int(record["train_num_updates"]) - done
            done += added
            tokens += float(record.get("train_wpb", math.nan)) * added
            seconds += _epoch_seconds(record, added)
        measured = math.isfinite(tokens) and math.isfinite(seconds) and seconds > 0
        finite = [loss for loss in losses.values() if math.isfinite(loss)]
        return TrainingSummary(
            num_updates=num_updates,
            epochs=len(epochs) or None,
            train_seconds=round(seconds, 1) if measured else None,
            target_tokens=round(tokens) if measured else None,
            tokens_per_second=round(tokens / seconds, 1) if measured else None,
            best_valid_loss=min(finite, default=None),
        )


def _epoch_seconds(record: dict[str, Any], updates: float) -> float:
    rounded = float(record.get("train_train_wall", math.nan))
    ups = float(record.get("train_ups", 0))
    return min(max(updates / ups, rounded - 0.5, 0.0), rounded + 0.5) if ups > 0 else rounded
