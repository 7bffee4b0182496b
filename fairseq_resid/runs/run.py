"""The run folder: what is in it, written once, read by training, evaluation, analysis and report.

RUN/checkpointN.pt, checkpoint_E_U.pt      fairseq's, at the end of epoch N, and in epoch E at update U
RUN/checkpoint_best.pt, checkpoint_last.pt fairseq's copies
RUN/run.json                               the training's command, plan, versions, commit, hardware, whether it finished
RUN/train.log, train.rankN.log             all that fairseq-train --log-format json says, and its rank N
RUN/averaged.pt, averaged.json             the average of the last numbered checkpoints, what it was made from
RUN/epochsFIRST-LAST.pt, ....json          the average of the checkpoints of these epochs, if it was asked for
RUN/decode/SUBSET.{averaged,last,...}.{log,hyp,json}
                                           all that fairseq-generate says, its hypotheses, what they were made from
RUN/results.json                           what evaluation found on the test set (results.SUBSET.json on another)
RUN/card.md                                all of this on a page
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .. import records
from ..data import folders
from ..files import locked, reading

Numbering = Literal["epoch", "update"]
NUMBERED = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


# A record of fairseq's log, on a line of its own or after time, level and logger.
LOGGED = re.compile(r"(?:[^|{]*\|){0,3} ?(\{.*\})\s*")
# What a training says first, its settings.
SESSION = "fairseq_cli.train | {"
MOST_SECONDS = 1e12  # of a training: what Python still shows as a duration
TRAIN, EVALUATE = "fairseq-resid train", "fairseq-resid evaluate"


@dataclass(frozen=True)
class Hardware:
    """The machine of a training."""

    cpu: str
    cores: int
    gpus: list[str]


@dataclass(frozen=True)
class Session:
    """One time that a run was trained, from its start to its end or to an interrupt.

    variables: environment variables that decide threads and memory, set by the user or by the launcher
    changes: how it differs from the session before it
    """

    started: str
    commit: str | None
    hardware: Hardware
    versions: dict[str, str]
    changes: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """run.json: what was trained, and when.

    plan: runs/plan.py's, in a reader's words; evaluate: the flags that the recipe states for its evaluation
    """

    command: list[str]
    finished: bool
    plan: dict[str, str | int] = field(default_factory=dict)
    seed: int | str | None = None  # version 0.2 wrote a string
    sessions: list[Session] = field(default_factory=list)
    evaluate: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingSummary:
    """What train.log says of a training, resumed ones taken together; None if the log does not say it.

    train_seconds: time inside training steps; not validation, saving or start-up
    target_tokens: target tokens trained on, end-of-sentence marks included; images of an image model, says `unit`
    """

    num_updates: int | None = None
    epochs: int | None = None
    train_seconds: float | None = None
    target_tokens: int | None = None
    tokens_per_second: float | None = None
    best_valid_loss: float | None = None
    unit: str = "target tokens"

    def __post_init__(self) -> None:
        if self.train_seconds is not None and not 0 <= self.train_seconds <= MOST_SECONDS:
            raise ValueError(f"train_seconds: {self.train_seconds:g}: must be 0 to {MOST_SECONDS:g}")


@dataclass(frozen=True)
class ByModel:
    """A score of both models of a run: the average of its last checkpoints, and the last one."""

    averaged: float
    last: float


@dataclass(frozen=True)
class Scored:
    """A score with the signature that says which one it is."""

    score: float
    signature: str


@dataclass(frozen=True)
class Results:
    """results.json: what evaluation found on one part of the data.

    bleu: four decimals, with `signature`; None of image models; scores: those of every kind, by model and label
    sentences: or images; is_training_data: the model was trained on them
    """

    architecture: str
    parameters: int
    corpus: str
    subset: str
    training: TrainingSummary
    bleu: ByModel | None = None
    signature: str = ""
    data: str = ""
    sentences: int = 0
    averaged_checkpoints: list[str] = field(default_factory=list)
    decoding: dict[str, str | None] = field(default_factory=dict)
    scores: dict[str, dict[str, Scored]] = field(default_factory=dict)
    not_as_released: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    preparation: dict[str, Any] = field(default_factory=dict)
    is_training_data: bool = False


@dataclass(frozen=True)
class FileState:
    """What shows that a file has not changed: its name, size in bytes, time of change."""

    file: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        status = path.stat()
        return cls(path.name, status.st_size, status.st_mtime_ns)


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

    def checkpoint(self, name: str | None = None) -> Path:
        """Return the best checkpoint: the averaged model, or without one the last checkpoint; or the one of this name.

        Raises: ValueError naming the folder or the file that is missing.
        """
        if not self.path.is_dir():
            raise ValueError(f"{self.path}: no such run folder")
        file = self.path / name if name else self.averaged if self.averaged.is_file() else self.last
        if not file.is_file():
            raise ValueError(f"{file}: no such checkpoint; fairseq-resid train writes it")
        return file

    def average(self, name: str) -> Path:
        """Return the path of an average by its name, averaged or epochsFIRST-LAST."""
        return self.path / f"{name}.pt"

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

        Raises: ValueError if another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock", f"{self.path}: another training or evaluation is at work in it") as lock:
            yield lock

    def read_record(self) -> RunRecord | None:
        """Return what run.json says; None if there is none.

        Raises: ValueError naming the file if it is damaged.
        """
        return records.read_if_there(self.record, RunRecord, TRAIN)

    def read_results(self, subset: str = "test") -> Results:
        """Return what evaluation found.

        Raises: FileNotFoundError or ValueError naming the file that is missing or damaged.
        """
        return records.read(self.results(subset), Results, f"{EVALUATE} {self.path}")

    def results(self, subset: str = "test") -> Path:
        return self.path / ("results.json" if subset == "test" else f"results.{subset}.json")

    def numbered(self, by: Numbering) -> list[Path]:
        """Return the epoch- or update-numbered checkpoints, oldest first; best and last never count."""
        found = [(match, file) for file in self.path.iterdir() if (match := NUMBERED[by].fullmatch(file.name))]
        return [file for _, file in sorted((int(match[1]), file) for match, file in found)]

    def log_records(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON records of train.log in order, each once.

        Before version 0.3.3 fairseq wrote the file itself (--log-file), and a record of a process's k-th epoch stands
        there k times. Values are strings, rounded; epoch and update are numbers.
        """
        previous = ""
        for line in self.log_lines():
            record = log_record(line)
            if record is not None and line != previous:
                previous = line
                yield record

    def log_lines(self) -> Iterator[str]:
        """Yield the lines of train.log; none if there is none."""
        try:
            with reading(self.train_log) as log:
                yield from (line.decode("utf-8", "replace") for line in log)
        except FileNotFoundError:
            return

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
            if "train_num_updates" in record and "epoch" in record:
                epoch = int(record["epoch"])
                epochs = {number: kept for number, kept in epochs.items() if number < epoch}
                epochs[epoch] = record
            elif (loss := record.get("valid_loss", record.get("test_loss"))) is not None:  # --valid-subset test
                losses[updates] = float(loss)

        tokens = seconds = 0.0
        done = 0
        for record in epochs.values():
            added = int(record["train_num_updates"]) - done
            done += added
            tokens += float(record.get("train_wpb", math.nan)) * added
            seconds += _epoch_seconds(record, added)
        measured = math.isfinite(tokens) and 0 < seconds <= MOST_SECONDS
        finite = [loss for loss in losses.values() if math.isfinite(loss)]
        return TrainingSummary(
            num_updates=num_updates,
            epochs=len(epochs) or None,
            train_seconds=round(seconds, 1) if measured else None,
            target_tokens=round(tokens) if measured else None,
            tokens_per_second=round(tokens / seconds, 1) if measured else None,
            best_valid_loss=min(finite, default=None),
            unit=folders.of_log(next(iter(epochs.values()), {})).unit,
        )


def log_record(line: str) -> dict[str, Any] | None:
    """Return the JSON record on a line of train.log; None if it holds none, or one with what is no number."""
    if (match := LOGGED.fullmatch(line)) is None:
        return None
    try:
        record: dict[str, Any] = json.loads(match[1])
        numbers = {name: float(value) for name, value in record.items()}
        counts = {name: int(value) for name, value in record.items() if name == "epoch" or name.endswith("num_updates")}
    # The configuration, printed as a Python dict; what a damaged file holds.
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return record if all(math.isfinite(numbers[name]) for name in (*counts, *({"update"} & record.keys()))) else None


def _epoch_seconds(record: dict[str, Any], updates: float) -> float:
    rounded = float(record.get("train_train_wall", math.nan))
    ups = float(record.get("train_ups", 0))
    return min(max(updates / ups, rounded - 0.5, 0.0), rounded + 0.5) if ups > 0 else rounded
