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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from .. import records
from ..files import locked
from . import training_log
from .made_from import MadeFrom
from .training_command import TrainingCommand
from .training_log import TrainingSummary

Numbering = Literal["epoch", "update"]
NUMBERED: dict[Numbering, re.Pattern[str]] = {
    "epoch": re.compile(r"checkpoint([0-9]+)\.pt"),
    "update": re.compile(r"checkpoint_[0-9]+_([0-9]+)\.pt"),
}
# Files that make their folder a run folder.
FILES_OF_RUNS = ("*.pt", "run.json", "train.log", "results*.json")
TRAIN, EVALUATE = "fairseq-resid train", "fairseq-resid evaluate"


@dataclass(frozen=True)
class Hardware:
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
class Scored:
    score: float
    signature: str

    def rounded(self, digits: int) -> Scored:
        return replace(self, score=round(self.score, digits))


@dataclass(frozen=True)
class Results:
    """results.json: the scores of a run on one subset of the data.

    corpus: its name, followed by the direction of the model if the corpus was prepared for the other one
    source, target: languages in the direction of the model; tokenize: sacrebleu's tokeniser for `bleu`; all empty in
    results of 1.0.0
    bleu: of the models `averaged` and `last`, four decimals, with `signature`; None for images and captions
    scores: all scores, by model and label
    test_set: SHA-256 of the references or images; empty before version 1.1
    sentences: number of sentences, images or captioned images; is_training_data: whether the model was trained on them
    """

    architecture: str
    parameters: int
    corpus: str
    subset: str
    training: TrainingSummary
    bleu: dict[str, float] | None = None
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

    def decoded(self, subset: str, model: str, kind: str) -> Path:
        """Return the path of an output of a model, RUN/decode/SUBSET.MODEL.KIND."""
        return self.decode / f"{subset}.{model}.{kind}"

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
        if not any(fnmatch(file.name, pattern) for file in self.path.iterdir() for pattern in FILES_OF_RUNS):
            raise FileNotFoundError(f"{self.path}: not a run folder: has no checkpoint, log, run.json or results.json")

    @property
    def decode(self) -> Path:
        return self.file("decode")

    @property
    def record(self) -> Path:
        return self.file("run.json")

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

    def training_command(self) -> TrainingCommand | None:
        """Return the command in run.json; None if the file cannot be read, or does not exist because the run was not
        trained by fairseq-resid."""
        record = records.remembered(self.record, RunRecord)
        return TrainingCommand.parse(record.command) if record else None

    def setting_and_seed(self) -> tuple[str, str]:
        """Return what is equal for all runs that differ only by seed, and the seed.

        Without a recorded command, this is the path of the folder, and the seed is empty.
        """
        command = self.training_command()
        if command is None:
            return str(self.path.resolve()), ""
        return json.dumps(command.setting().argv), command.value("--seed", "1")

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
        command = self.training_command() or TrainingCommand()
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

    def log_lines(self) -> Iterator[str]:
        return training_log.lines(self.train_log)

    def log_records(self) -> Iterator[dict[str, Any]]:
        return training_log.records(self.train_log)

    def training_summary(self) -> TrainingSummary:
        return training_log.summary(self.train_log)


def saved_at(checkpoint: Path) -> tuple[int, float]:
    """Return the epoch and update of a numbered checkpoint; the update is infinite at the end of the epoch."""
    epoch, *update = map(int, re.findall("[0-9]+", checkpoint.name))
    return epoch, update[0] if update else math.inf


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of run folders; for names that occur more than once, the paths."""
    names = [Run(path).name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
