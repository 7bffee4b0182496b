"""The interface that evaluation, comparison, tables, analysis, studies and reports use for every task.

Each task is one object, defined in translating.py, captioning.py or classifying.py and listed in kinds.py. A new task
needs such an object, a fairseq task if fairseq has none, and a command that prepares its data folders
(data/folders.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..data.folders import FolderKind
from ..runs.run import Results, Run, Scored
from ..runs.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .loading import Loaded

NLL = "NLL"  # a score of every task
LAST = "last"  # a model that every task scores
POSITIONS = 64  # positions with separate values; later positions count as the last one
FREQUENCIES = 8  # classes of tokens by their rank in dict.txt: the 1st to 10th, 11th to 32nd, 33rd to 100th, ...

TableRows = list[tuple[str, ...]]


class Data(Protocol):
    """An opened data folder, with the properties that results.json records."""

    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str: ...
    @property
    def differences(self) -> Sequence[str]: ...
    @property
    def unverified(self) -> Sequence[str]: ...
    @property
    def preparation(self) -> dict[str, Any]: ...


D = TypeVar("D", bound=Data)
N = TypeVar("N")


@dataclass(frozen=True)
class ScoredModel:
    """A model to be scored: its name in results.json, its file, and the checkpoints it was made from."""

    name: str
    file: Path
    made_from: list[Path]


@dataclass(frozen=True)
class ScoringJob(Generic[D]):
    """The evaluation of one run on one subset of the data, with its inputs located and checked.

    task_flags: flags of fairseq-generate that set the fairseq task as in training
    averages: the checkpoints of each average, by the name of the average; empty if the task has no averages
    is_training_data: whether the model was trained on this subset
    """

    run: Run
    task: Task[D]
    data: D
    subset: str
    architecture: str
    parameters: int
    cpu: bool
    settings: Settings
    averages: dict[str, list[Path]] = field(default_factory=dict)
    is_training_data: bool = False
    task_flags: tuple[str, ...] = ()

    def models(self) -> list[ScoredModel]:
        """Return all models to score: the averages and the last checkpoint."""
        averages = [ScoredModel(name, self.run.file(f"{name}.pt"), files) for name, files in self.averages.items()]
        return [*averages, ScoredModel(LAST, self.run.last, [self.run.last])]

    def decoded(self, name: str, kind: str) -> Path:
        """Return the path of an output of a model, RUN/decode/SUBSET.NAME.KIND."""
        return self.run.file(f"decode/{self.subset}.{name}.{kind}")


@dataclass(frozen=True)
class Candidate:
    """An evaluated run to be compared with others.

    model: the model that produced the score and the outputs; outputs: the data that the task's tests need
    setting: the training command without the options that differ between seeds
    name: the name of the folder, or its path if another candidate's folder has the same name
    """

    path: Path
    results: Results
    task: Task[Any]
    model: str
    score: float
    outputs: Any
    setting: str
    seed: str
    name: str


@dataclass(frozen=True)
class Texts:
    """Examples for a comparison: sources, their references, and the outputs of every candidate, by candidate name.

    pictures: (examples, height, width, 3) bytes, a small picture of every source
    """

    sources: list[str]
    references: Sequence[Sequence[str]]
    outputs: dict[str, list[str]]
    pictures: np.ndarray | None = None


@dataclass(frozen=True)
class Measure:
    """A measure that a study can test: how the score of a model on a test set is computed and shown.

    parts: returns an (examples, k) table for a run and a test set, to be summed over examples
    score: computes the score from the k sums; digits: decimals shown; is_less_better: whether lower is better
    """

    parts: Callable[[Run, str], list[list[float]]]
    score: Callable[[np.ndarray], float]
    digits: int
    is_less_better: bool


def mean_of_sums(summed: np.ndarray) -> float:
    return float(summed[0] / summed[1])


class Batch(ABC):
    """A batch of examples for analysis."""

    net_input: dict[str, Any]

    @abstractmethod
    def nll(self, model: Any) -> Tensor:
        """Return the NLL in nats of each prediction, 0 at padding; its sum is the NLL of the batch."""

    @property
    @abstractmethod
    def predicted(self) -> int:
        """The number of predictions: target tokens or images."""

    @abstractmethod
    def kept(self, stack: str) -> Tensor | None:
        """Return a mask that is true at positions of a stack without padding; None if the batch has no padding."""

    @abstractmethod
    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        """Return, for each kind of grouping, the class of every position and the number of classes."""

    @abstractmethod
    def by_example(self, state: Tensor) -> Tensor:
        """Return a state with the examples in the first dimension."""


@dataclass(frozen=True)
class Words:
    """What one example is called, one prediction (the unit of the NLL), and one output text."""

    example: str
    prediction: str
    output: str = "text"

    @property
    def examples(self) -> str:
        return f"{self.example}s"


@dataclass(frozen=True)
class Studied(Generic[D]):
    """What a study does with the models of a task.

    measures: by name; best: the model whose scores are compared; shown: additional scores in the table
    floor: a measure and a threshold; a run with a lower score did not train, and its arm is not tested for significance
    curve: the quantity of analysis/curves.py that is plotted by epoch
    kept_files: patterns of the files in RUN/decode that are kept
    score_together: returns the scores of a model on the concatenation of test sets, which are given by measure
    """

    measures: Mapping[str, Measure]
    best: str
    curve: str
    kept_files: tuple[str, ...]
    score_together: Callable[[Sequence[ScoringJob[D]], str, Mapping[str, Sequence[str]]], dict[str, Scored]]
    shown: tuple[str, ...] = ()
    floor: tuple[str, float] | None = None


@dataclass(frozen=True)
class Analysed:
    """How an analysis reads the examples of a task.

    load: loads a subset into fairseq's task, without augmentation; ValueError if the data folder does not contain it
    fits: returns, for every example of a loaded subset, whether it is short enough for the model
    batches: yields the chosen examples in batches with at most so many padded positions per side
    """

    load: Callable[[Loaded, str], None]
    fits: Callable[[Loaded, str], np.ndarray]
    batches: Callable[[Loaded, str, list[int], int], Iterator[Batch]]


class Task(ABC, Generic[D]):
    """The properties and operations of one task.

    folder: the kind of its data folders
    has_averages: whether averages of checkpoints are scored; otherwise only the last checkpoint is
    shows_spread: whether evaluating several runs also prints their spread over seeds
    table_headings: scores and speed in a table of runs; headings: columns of a comparison
    """

    folder: FolderKind
    words: Words
    studied: Studied[D]
    analysed: Analysed
    has_averages: bool
    shows_spread = False
    table_headings: tuple[str, str, str]
    headings: tuple[str, ...]

    # ---------------------------------------------------------------------------------------------------- evaluation

    @abstractmethod
    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> D:
        """Open a data folder and check that it contains `subset` and matches the model of the run's last checkpoint.

        Raises: ValueError or OSError naming the missing or mismatched file.
        """

    def task_flags(self, cfg: Any, data: D) -> tuple[str, ...]:
        """Return the flags of fairseq-generate that read a data folder with the fairseq task in a checkpoint's cfg."""
        return ("--task", self.folder.task)

    def with_tokenizer(self, run: Run, results: Results, tokenize: str, data: Path | None) -> Results:
        """Return results with the BLEU of the same translations under another tokeniser of sacrebleu.

        Raises: ValueError if the task has no BLEU; see `read_outputs`.
        """
        raise ValueError(f"--tokenize {tokenize}: applies to BLEU, but {run.path} is a model of {self.folder.content}")

    @abstractmethod
    def test_set(self, results: Results) -> str:
        """Return the SHA-256 of the references or images that these results are about.

        Raises: ValueError or OSError naming the missing or damaged file.
        """

    @abstractmethod
    def nll(self, job: ScoringJob[D], model: ScoredModel) -> float:
        """Return the mean NLL of the data under a model, in nats per prediction."""

    @abstractmethod
    def score(self, job: ScoringJob[D], results: Results, lock: int) -> tuple[Results, list[str]]:
        """Return the results with the scores of all models added, and the lines that evaluation prints.

        lock: file descriptor of the run folder's lock, for child processes
        """

    @abstractmethod
    def not_as_published(self, job: ScoringJob[D]) -> list[str]:
        """Return the reasons why the scores cannot be compared with published ones, one phrase each."""

    # ----------------------------------------------------------------------------------------------- reading results

    @abstractmethod
    def has_made(self, results: Results) -> bool:
        """Return whether results belong to this task."""

    @abstractmethod
    def signature(self, results: Results) -> str:
        """Return the signature of the score shown in the table."""

    @abstractmethod
    def table_scores(self, run: Run, results: Results) -> tuple[str, str]:
        """Return the two scores of a run for the table."""

    # ---------------------------------------------------------------------------------------------------- comparison

    @abstractmethod
    def read_outputs(self, run: Run, subset: str, results: Results, model: str, data: Path | None) -> tuple[float, Any]:
        """Return the score of a model, and its outputs on a subset for a comparison.

        Raises: ValueError or OSError naming the file that is missing or damaged, or that does not match the results.
        """

    @abstractmethod
    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        """Raise ValueError naming both runs and their difference if they cannot be compared."""

    @abstractmethod
    def compare(self, candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
        """Return a row for every candidate, tested against the first one, and notes; the first note names the data."""

    def list_apart(self, candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows]:
        """Return headings and a row for every candidate, without significance tests."""
        rows = [(each.name, each.results.architecture, f"{each.score:.2f}") for each in candidates]
        return self.headings[:3], list(rows)

    @abstractmethod
    def spread(self, seeds: Sequence[Candidate]) -> str:
        """Return a summary of the scores of runs that differ only by seed."""

    def texts(self, candidates: Sequence[Candidate], data: Path | None = None) -> Texts | None:
        """Return the texts that the candidates produced; None if the task does not produce text.

        data: the data folder, if it is not the one named in the results
        """
        return None


def conditions(results: Results, model: str, score: str = "BLEU") -> dict[str, object]:
    """Return the conditions that must be equal for two results to be comparable, by readable name.

    score: the name of the score whose signature is one of the conditions
    """
    facts: dict[str, object] = {
        "corpus": results.corpus,
        "test set": results.subset,
        "number of examples": results.sentences,
        score: results.signature,
        "decoding": results.decoding,
    }
    count = len(results.averaged_checkpoints)
    return {**facts, "number of averaged checkpoints": count} if model == "averaged" else facts


def check_conditions(first: Candidate, other: Candidate, score: str = "BLEU") -> None:
    """Raise ValueError naming both runs and the condition that differs; see `conditions`."""
    mine, theirs = (conditions(each.results, each.model, score) for each in (first, other))
    for what in mine:
        if mine[what] != theirs[what]:
            raise ValueError(
                f"{first.path} and {other.path} cannot be compared: {what} differs ({mine[what]} and {theirs[what]})"
            )


def score_of(run: Run, results: Results, model: str, name: str) -> float:
    """Return a score of a model.

    Raises: ValueError naming the file if it does not contain the score.
    """
    try:
        return results.scores[model][name].score
    except KeyError:
        raise ValueError(f"{run.results(results.subset)}: scores: {model} has no {name}") from None


def article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
