"""The run folder: paths and contents of its files, for training, evaluation, analysis and report.

RUN/checkpointN.pt, checkpoint_E_U.pt      written by fairseq at the end of epoch N, or in epoch E at update U
RUN/checkpoint_best.pt, checkpoint_last.pt copies written by fairseq
RUN/run.json                               command, plan, versions, commit, hardware, and whether training has finished
RUN/train.log, train.rankN.log             output of fairseq-train --log-format json, of rank 0 and rank N
RUN/averaged.pt, averaged.json             average of the last numbered checkpoints, and its inputs
RUN/epochsFIRST-LAST.{pt,json}             average of the checkpoints of these epochs, if --epochs was given
RUN/decode/SUBSET.{averaged,last,...}.{log,hyp,json}
                                           output of fairseq-generate, its hypotheses, and their inputs
RUN/results.json                           scores on the test set (results.SUBSET.json for other subsets)
RUN/card.md                                the model card, a summary on one page
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, TypeVar

from .. import records
from ..data import folders
from ..files import locked, reading
from .made_from import MadeFrom
from .training_command import TrainingCommand

T = TypeVar("T")
Numbering = Literal["epoch", "update"]
NUMBERED: dict[Numbering, re.Pattern[str]] = {
    "epoch": re.compile(r"checkpoint([0-9]+)\.pt"),
    "update": re.compile(r"checkpoint_[0-9]+_([0-9]+)\.pt"),
}


# A JSON record in fairseq's log: alone on its line, or after time, level and logger.
LOGGED = re.compile(r"(?:[^|{]*\|){0,3} ?(\{.*\})\s*")
# The first line of a training session in the log: its settings.
SESSION = "fairseq_cli.train | {"
# Lines of fairseq's trainer.
LOADED = re.compile(r"Loaded checkpoint .* @ ([0-9]{1,15}) updates\)")
SAVING = "Saving checkpoint to "
EXPLODED = 100  # a logged gradient norm above this multiple of the median of a run's norms counts as an explosion
TRAIN, EVALUATE = "fairseq-resid train", "fairseq-resid evaluate"


@dataclass(frozen=True)
class Hardware:
    """The hardware of a training session."""

    cpu: str
    cores: int
    gpus: list[str]


@dataclass(frozen=True)
class Session:
    """One training session of a run, from its start to its end or an interrupt.

    variables: environment variables that control threads and memory, set by the user or by the launcher
    changes: differences from the previous session
    """

    started: str
    commit: str | None
    hardware: Hardware
    versions: dict[str, str]
    changes: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """run.json: the command, plan and sessions of a training run.

    plan: from runs/plan.py, in readable form; evaluate: the evaluation options in the recipe
    """

    command: list[str]
    finished: bool
    plan: dict[str, str | int] = field(default_factory=dict)
    seed: int | str | None = None  # version 0.2 wrote a string
    sessions: list[Session] = field(default_factory=list)
    evaluate: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Explosion:
    """The largest logged gradient norm of a run whose gradient exploded: a mean over a log interval, before clipping.

    update: the last update of that interval; median: of all logged norms
    """

    norm: float
    update: int
    median: float

    def __str__(self) -> str:
        norm = f"{self.norm:,.0f}" if self.norm < 1e6 else f"{self.norm:.1e}"
        return f"norm {norm} at update {self.update:,}, median {self.median:.2g}"


@dataclass(frozen=True)
class TrainingSummary:
    """Totals of a training run over all its sessions, from train.log; None for values that the log does not contain.

    num_updates: includes those of the checkpoint of another run that training started from, `started_at`; all other
    values are of this run alone
    train_seconds: time spent in training steps, excluding validation, saving and start-up
    target_tokens: target tokens trained on, including EOS, or images; `unit` says which
    explosion: None if no logged gradient norm is more than EXPLODED times the median
    """

    num_updates: int | None = None
    epochs: int | None = None
    train_seconds: float | None = None
    target_tokens: int | None = None
    tokens_per_second: float | None = None
    best_valid_loss: float | None = None
    unit: str = "target tokens"
    explosion: Explosion | None = None
    started_at: int = 0


@dataclass(frozen=True)
class ByModel:
    """The scores of the two models of a run: the average of its last checkpoints, and the last checkpoint."""

    averaged: float
    last: float


@dataclass(frozen=True)
class Scored:
    """A score with its signature."""

    score: float
    signature: str


@dataclass(frozen=True)
class Results:
    """results.json: the scores of a run on one subset of the data.

    corpus: its name, followed by the direction of the model if the corpus was prepared for the other one
    source, target: languages in the direction of the model; tokenize: sacrebleu's tokeniser for `bleu`; all empty in
    results of 1.0.0
    bleu: four decimals, with `signature`; None for images and captions; scores: all scores, by model and label
    test_set: SHA-256 of the references or images; empty before version 1.1
    sentences: number of sentences, images or captioned images; is_training_data: whether the model was trained on them
    """

    architecture: str
    parameters: int
    corpus: str
    subset: str
    training: TrainingSummary
    bleu: ByModel | None = None
    signature: str = ""
    data: str = ""
    test_set: str = ""
    sentences: int = 0
    averaged_checkpoints: list[str] = field(default_factory=list)
    decoding: dict[str, str | None] = field(default_factory=dict)
    scores: dict[str, dict[str, Scored]] = field(default_factory=dict)
    not_as_released: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    preparation: dict[str, Any] = field(default_factory=dict)
    is_training_data: bool = False
    source: str = ""
    target: str = ""
    tokenize: str = ""

    @property
    def direction(self) -> tuple[str, str] | None:
        """The source and target language of the model; None for results of 1.0.0, and for images and captions."""
        return (self.source, self.target) if self.source else None


@dataclass(frozen=True)
class Run:
    """The folder of a training run, and the paths of the files in it."""

    path: Path

    def file(self, name: str) -> Path:
        return self.path / name

    def files(self, pattern: str) -> list[Path]:
        """Return the existing files that match a pattern, sorted."""
        return sorted(self.path.glob(pattern))

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def train_log(self) -> Path:
        return self.file("train.log")

    @property
    def last(self) -> Path:
        return self.path / "checkpoint_last.pt"

    @property
    def best(self) -> Path:
        return self.path / "checkpoint_best.pt"

    @property
    def averaged(self) -> Path:
        return self.path / "averaged.pt"

    def checkpoint(self, name: str | None = None) -> Path:
        """Return the checkpoint `name`: by default the averaged model, or else the last checkpoint.

        Raises: ValueError or FileNotFoundError naming the folder or the file that is missing, or the averaged model if
        training went on after it was made.
        """
        self.require()
        if name and Path(name).name != name:
            raise ValueError(f"checkpoint {name}: must be the name of a file in {self.path}, without folders")
        if not name and self.averaged.is_file():
            self._require_latest_average()
        file = self.path / name if name else self.averaged if self.averaged.is_file() else self.last
        if not file.is_file():
            advice = f"run {TRAIN} first, or choose another file"
            if file == self.last and any(self.numbered(by) for by in NUMBERED):
                advice = f"run {EVALUATE} {self.path}, or {TRAIN} again, to restore it from an earlier one"
            raise ValueError(f"{file}: no such checkpoint; {advice}")
        return file

    def _require_latest_average(self) -> None:
        note = MadeFrom.read(self.file("averaged.json"))
        names = {one.file for one in note.files} if note else set()
        for by in NUMBERED:
            found = [file.name for file in self.numbered(by)]
            older = [name for name in found if name in names]
            if older and older[-1] != found[-1]:
                raise ValueError(
                    f"{self.averaged}: made from checkpoints up to {older[-1]}, but training went on to {found[-1]}; "
                    f"run {EVALUATE} {self.path} again, or choose a checkpoint with --checkpoint"
                )

    def require(self) -> None:
        """Check that this is a run folder.

        Raises: FileNotFoundError naming the folder if it does not exist or has no file of a run.
        """
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path}: no such run folder")
        if not any(is_of_run(file.name) for file in self.path.iterdir()):
            raise FileNotFoundError(f"{self.path}: not a run folder: has no checkpoint, log, run.json or results.json")

    def average(self, name: str) -> Path:
        """Return the path of an average by its name, "averaged" or "epochsFIRST-LAST"."""
        return self.path / f"{name}.pt"

    @property
    def decode(self) -> Path:
        return self.file("decode")

    @property
    def record(self) -> Path:
        return self.file("run.json")

    @property
    def card(self) -> Path:
        return self.file("card.md")

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the folder for one training or evaluation process; yield the lock's file descriptor for child processes.

        Raises: ValueError if another process has locked it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock", f"{self.path}: in use by another training or evaluation process") as lock:
            yield lock

    def read_record(self) -> RunRecord | None:
        """Read run.json; return None if it does not exist.

        Raises: ValueError naming the file if it is damaged.
        """
        return records.read_if_there(self.record, RunRecord, TRAIN)

    def read_results(self, subset: str = "test") -> Results:
        """Read the results of evaluation on a subset.

        Raises: FileNotFoundError or ValueError naming the file that is missing or damaged.
        """
        self.require()
        flags = "" if subset == "test" else f" --subset {subset}"
        results = records.read(self.results(subset), Results, f"{EVALUATE} {self.path}{flags}")
        if results.bleu is not None:
            prepared = results.preparation.get("source"), results.preparation.get("target")
            direction = results.direction or (prepared if all(prepared) else None)
            if direction:
                self.require_direction(self.results(subset), direction, f"{EVALUATE} {self.path}")
        return results

    def require_direction(self, file: Path, direction: tuple[Any, Any], again: str) -> None:
        """Check that a file is about the direction in which the run was trained, if its command has both -s and -t.

        Before 1.1.0, models were scored and exported in the direction of their corpus.
        Raises: ValueError naming the file, and `again`, the command that writes it.
        """
        record = records.remembered(self.record, RunRecord)
        command = TrainingCommand.parse(record.command if record else [])
        trained = command.value("--source-lang", ""), command.value("--target-lang", "")
        if all(trained) and trained != direction:
            raise ValueError(
                f"{file}: written by an earlier version, which ignored -s {trained[0]} -t {trained[1]}; run {again} "
                "again"
            )

    def results(self, subset: str = "test") -> Path:
        return self.file("results.json" if subset == "test" else f"results.{subset}.json")

    def numbered(self, by: Numbering) -> list[Path]:
        """Return the epoch- or update-numbered checkpoints, oldest first; never checkpoint_best or checkpoint_last."""
        found = [(match, file) for file in self.path.iterdir() if (match := NUMBERED[by].fullmatch(file.name))]
        return [file for _, file in sorted((int(match[1]), file) for match, file in found)]

    def log_records(self) -> Iterator[dict[str, Any]]:
        """Yield each JSON record of train.log once, in order.

        Before version 0.3.3, fairseq itself wrote the file (--log-file), with k copies of each record of a process's
        k-th epoch. Values are rounded and stored as strings, except epoch and update.
        """
        previous = ""
        for line in self.log_lines():
            record = log_record(line)
            if record is not None and line != previous:
                previous = line
                yield record

    def log_lines(self) -> Iterator[str]:
        """Yield the lines of train.log; nothing if the file does not exist. Raises: ValueError if it is damaged."""
        try:
            with reading(self.train_log) as log:
                yield from (line.decode("utf-8", "replace") for line in log)
        except FileNotFoundError:
            return

    def started_at(self) -> int:
        """Return the number of updates of the checkpoint of another run that training started from; 0 if none.

        It was loaded before this run saved its first checkpoint.
        """
        updates = 0
        for line in self.log_lines():
            if SAVING in line:
                break
            if loaded := LOADED.search(line):
                updates = int(loaded[1])
        return updates

    def training_summary(self) -> TrainingSummary:
        """Compute the amount and speed of training and the best validation loss from train.log.

        Tokens are the sum over epochs of train_wpb (target tokens per update) times updates. Seconds are the sum of
        train_train_wall, which fairseq rounds to whole seconds per epoch; train_ups (updates per second, including
        validation) is used to refine it within the rounding error.
        If training was resumed in the middle of an epoch, the epoch is logged twice; the second record covers all of
        it, because the meters are in the checkpoint. If training was restarted from an older checkpoint, the new
        records replace the old ones written after that checkpoint.
        If training started from a checkpoint of another run, the seconds of the first epoch may be those of both runs,
        but train_ups is of this run.
        """
        epochs: dict[int, dict[str, Any]] = {}
        losses: dict[int, float] = {}
        norms: dict[int, float] = {}
        num_updates = None
        for record in self.log_records():
            updates = next((int(record[key]) for key in record if key.endswith("num_updates")), None)
            if updates is None:
                continue
            num_updates = updates
            drop_later(losses, updates)
            drop_later(norms, updates)
            if "gnorm" in record:
                norms[updates] = float(record["gnorm"])
            if "train_num_updates" in record and "epoch" in record:
                epoch = int(record["epoch"])
                drop_later(epochs, epoch - 1)
                epochs[epoch] = record
            elif (loss := record.get("valid_loss", record.get("test_loss"))) is not None:  # --valid-subset test
                losses[updates] = float(loss)

        tokens = seconds = 0.0
        done = started_at = self.started_at()
        for record in epochs.values():
            added = int(record["train_num_updates"]) - done
            tokens += float(record.get("train_wpb", math.nan)) * added
            seconds += _epoch_seconds(record, added, is_shared=done == started_at > 0)
            done += added
        measured = math.isfinite(tokens) and 0 < seconds < math.inf
        finite = [loss for loss in losses.values() if math.isfinite(loss)]
        return TrainingSummary(
            num_updates=num_updates,
            epochs=len(epochs) or None,
            train_seconds=round(seconds, 1) if measured else None,
            target_tokens=round(tokens) if measured else None,
            tokens_per_second=round(tokens / seconds, 1) if measured else None,
            best_valid_loss=min(finite, default=None),
            unit=folders.of_log(next(iter(epochs.values()), {})).unit,
            explosion=find_explosion(norms),
            started_at=started_at,
        )


def saved_at(checkpoint: Path) -> tuple[int, float]:
    """Return the epoch and update of a numbered checkpoint; the update is infinite at the end of the epoch."""
    epoch, *update = map(int, re.findall("[0-9]+", checkpoint.name))
    return epoch, update[0] if update else math.inf


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of run folders; for names that occur more than once, the paths."""
    names = [Run(path).name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]


def is_of_run(name: str) -> bool:
    """Return whether a file of this name, such as a checkpoint, makes its folder a run folder."""
    return name.endswith(".pt") or name in ("run.json", "train.log") or fnmatch(name, "results*.json")


def find_explosion(norms: dict[int, float]) -> Explosion | None:
    """Return the largest of a run's gradient norms, by update, if it is more than EXPLODED times their median."""
    finite = {update: norm for update, norm in norms.items() if math.isfinite(norm)}
    if not finite:
        return None
    update, median = max(finite, key=finite.__getitem__), statistics.median(finite.values())
    return Explosion(finite[update], update, median) if finite[update] > EXPLODED * median > 0 else None


def drop_later(rows: dict[int, T], last: int) -> None:
    """Remove the entries after `last`, where training restarted, from a dict with increasing keys."""
    while rows and next(reversed(rows)) > last:
        rows.popitem()


def log_record(line: str) -> dict[str, Any] | None:
    """Return the JSON record on a line of train.log; None if there is no record, or if it has non-numeric values."""
    if (match := LOGGED.fullmatch(line)) is None:
        return None
    try:
        record: dict[str, Any] = json.loads(match[1])
        [float(value) for value in record.values()]
    except (ValueError, TypeError):  # the configuration, which fairseq prints as a Python dict, or a damaged line
        return None
    return record


def _epoch_seconds(record: dict[str, Any], updates: float, is_shared: bool) -> float:
    """Return the seconds of training steps; is_shared: whether train_train_wall may include updates of another run."""
    rounded = float(record.get("train_train_wall", math.nan))
    ups = float(record.get("train_ups", 0))
    least = 0.0 if is_shared else rounded - 0.5
    return min(max(updates / ups, least, 0.0), rounded + 0.5) if ups > 0 else rounded
