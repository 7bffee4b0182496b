"""The interface that evaluation, comparison, tables, analysis, studies and reports use for every task.

Each task is one object, defined in translation.py, captions.py or images.py and listed in kinds.py. A new task needs
such an object, a fairseq task if fairseq has none, and a command that prepares its data folders (data/folders.py).
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..console import signed
from ..data.folders import FolderKind
from ..runs.run import EVALUATE, Results, Run, Scored
from ..runs.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .loading import Loaded
    from .significance import Paired

NLL = "NLL"  # a score of every task
LAST = "last"  # a model that every task scores
TOLERANCE = 0.001  # of a score in results.json, which has four decimals
POSITIONS = 64  # positions with separate values; later positions count as the last one
FREQUENCIES = 8  # classes of tokens by their rank in dict.txt: the 1st to 10th, 11th to 32nd, 33rd to 100th, ...

TableRows = list[tuple[str, ...]]


D = TypeVar("D")  # an opened data folder


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

    @property
    def models(self) -> list[str]:
        """The names of the models to score, as in results.json."""
        return [*self.averages, LAST]

    def checkpoint(self, model: str) -> Path:
        return self.run.last if model == LAST else self.run.file(f"{model}.pt")

    def decoded(self, model: str, kind: str) -> Path:
        return self.run.decoded(self.subset, model, kind)


@dataclass(frozen=True)
class Candidate:
    """An evaluated run to be compared with others.

    model: the model that produced the score and the outputs; outputs: the data that the task's tests need
    name: the name of the folder, or its path if another candidate's folder has the same name
    """

    path: Path
    results: Results
    task: Task[Any]
    model: str
    score: float
    outputs: Any
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

    def kept(self, stack: str) -> Tensor | None:
        """Return a mask that is true at positions of a stack without padding; None if the batch has no padding."""
        return None

    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        """Return, for each kind of grouping, the class of every position and the number of classes."""
        return {}

    def by_example(self, state: Tensor) -> Tensor:
        """Return a state with the examples in the first dimension."""
        return state


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
class Studied:
    """What a study does with the models of a task.

    measures: by name; best: the model whose scores are compared; shown: additional scores in the table
    floor: a measure and a threshold; a run with a lower score did not train, and its arm is not tested for significance
    curve: the quantity of analysis/curves.py that is plotted by epoch
    kept_files: patterns of the files in RUN/decode that are kept
    """

    measures: Mapping[str, Measure]
    best: str
    curve: str
    kept_files: tuple[str, ...]
    shown: tuple[str, ...] = ()
    floor: tuple[str, float] | None = None


class Task(ABC, Generic[D]):
    """The properties and operations of one task.

    folder: the kind of its data folders; score_name: of the score in tables and comparisons
    shows_spread: whether evaluating several runs also prints their spread over seeds
    table_headings: scores and speed in a table of runs; headings: columns of a comparison
    """

    folder: FolderKind
    score_name: str
    words: Words
    studied: Studied
    shows_spread = False
    table_headings: tuple[str, str, str]
    headings: tuple[str, ...]

    @property
    def has_averages(self) -> bool:
        """Whether averages of checkpoints are scored; otherwise only the last checkpoint is."""
        return self.studied.best != LAST

    # ---------------------------------------------------------------------------------------------------- evaluation

    @abstractmethod
    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> D:
        """Open a data folder and check that it contains `subset` and matches the model of the run's last checkpoint.

        Raises: ValueError or OSError naming the missing or mismatched file.
        """

    def task_flags(self, cfg: Any, data: D) -> tuple[str, ...]:
        """Return the flags of fairseq-generate that read a data folder with the fairseq task in a checkpoint's cfg."""
        return ("--task", self.folder.task)

    @abstractmethod
    def test_set(self, results: Results) -> str:
        """Return the SHA-256 of the references or images that these results are about.

        Raises: ValueError or OSError naming the missing or damaged file.
        """

    @abstractmethod
    def nll(self, job: ScoringJob[D], model: str) -> float:
        """Return the mean NLL of the data under a model, in nats per prediction."""

    @abstractmethod
    def score(self, job: ScoringJob[D], results: Results, lock: int) -> tuple[Results, list[str]]:
        """Return the results with the scores of all models added, and the lines that evaluation prints.

        lock: file descriptor of the run folder's lock, for child processes
        """

    @abstractmethod
    def score_together(
        self, jobs: Sequence[ScoringJob[D]], model: str, tests: Mapping[str, Sequence[str]]
    ) -> dict[str, Scored]:
        """Return the scores of a model on the concatenation of test sets. tests: by measure"""

    def not_as_published(self, job: ScoringJob[D]) -> list[str]:
        """Return the reasons why the scores cannot be compared with published ones, one phrase each."""
        return [f"no published score of a model of {self.folder.content} is known to this version"]

    # ------------------------------------------------------------------------------------------------------ analysis

    @abstractmethod
    def load_examples(self, loaded: Loaded, subset: str) -> None:
        """Load a subset into fairseq's task, without augmentation.

        Raises: ValueError if the data folder does not contain it.
        """

    @abstractmethod
    def fits(self, loaded: Loaded, subset: str) -> np.ndarray:
        """Return, for every example of a loaded subset, whether it is short enough for the model."""

    @abstractmethod
    def batches(self, loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
        """Yield the chosen examples in batches with at most so many padded positions per side."""

    # ----------------------------------------------------------------------------------------------- reading results

    def has_made(self, results: Results) -> bool:
        """Return whether results belong to this task."""
        return self.score_name in results.scores.get(self.studied.best, {})

    def main_score(self, run: Run, results: Results, model: str) -> float:
        return score_of(run, results, model, self.score_name)

    def signature(self, results: Results) -> str:
        """Return the signature of the score shown in the table."""
        return f"{self.score_name} {results.signature}"

    def table_scores(self, run: Run, results: Results) -> tuple[str, str]:
        """Return the two scores of a run for the table: of the average and of the last checkpoint."""
        averaged, last = (self.main_score(run, results, model) for model in (self.studied.best, LAST))
        return f"{averaged:.2f}", f"{last:.2f}"

    def with_tokenizer(self, run: Run, results: Results, tokenize: str, data: Path | None) -> Results:
        """Return results with the BLEU of the same translations under another tokeniser of sacrebleu.

        Raises: ValueError if the task has no BLEU; see `read_outputs`.
        """
        raise ValueError(f"--tokenize {tokenize}: applies to BLEU, but {run.path} is a model of {self.folder.content}")

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
        return self.headings[:3], [self.row(each) for each in candidates]

    def row(self, candidate: Candidate, *tests: str) -> tuple[str, ...]:
        return candidate.name, candidate.results.architecture, f"{candidate.score:.2f}", *tests

    def spread(self, seeds: Sequence[Candidate]) -> str:
        """Return a summary of the scores of runs that differ only by seed."""
        scores = [each.score for each in seeds]
        return f"{self.score_name} {statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"

    def texts(self, candidates: Sequence[Candidate], data: Path | None = None) -> Texts | None:
        """Return the texts that the candidates produced; None if the task does not produce text.

        data: the data folder, if it is not the one named in the results
        """
        return None


class ExampleTask(Task[D]):
    """A task whose score is a mean over examples: two runs are compared by the differences of these examples."""

    @abstractmethod
    def interval(self, candidate: Candidate) -> tuple[float, float]:
        """Return the 95% interval of a candidate's score."""

    @abstractmethod
    def test(self, candidate: Candidate, baseline: Candidate) -> Paired: ...

    @abstractmethod
    def notes(self, baseline: Candidate) -> list[str]:
        """Return notes on the data, the tests and the signature."""

    def compare(self, candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
        baseline, rows = candidates[0], self.list_apart(candidates[:1])[1]
        for each in candidates[1:]:
            than = self.test(each, baseline)
            tests = signed(than.difference, 2), f"{signed(than.low, 2)} to {signed(than.high, 2)}", f"{than.p:.4f}"
            rows.append(self.row(each, *tests))
        return rows, self.notes(baseline)

    def list_apart(self, candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows]:
        rows: TableRows = []
        for each in candidates:
            low, high = self.interval(each)
            rows.append(self.row(each, "", f"{low:.2f} to {high:.2f}", "" if rows else "baseline"))
        return self.headings, rows


def check_conditions(first: Candidate, other: Candidate) -> None:
    """Raise ValueError naming both runs and the condition that differs, if one does."""

    def conditions(results: Results) -> dict[str, object]:
        count = len(results.averaged_checkpoints) if first.model == "averaged" else None
        return {
            "corpus": results.corpus,
            "test set": results.subset,
            "number of examples": results.sentences,
            first.task.score_name: results.signature,
            "decoding": results.decoding,
            "number of averaged checkpoints": count,
        }

    mine, theirs = conditions(first.results), conditions(other.results)
    for what in mine:
        if mine[what] != theirs[what]:
            raise cannot_compare(first, other, f"{what} differs ({mine[what]} and {theirs[what]})")


def cannot_compare(first: Candidate, other: Candidate, why: str) -> ValueError:
    return ValueError(f"{first.path} and {other.path} cannot be compared: {why}")


def not_scored(run: Run, subset: str, said: str, file: Path, found: str) -> ValueError:
    """Return the error for a score in results.json that is not the score of the outputs."""
    return ValueError(
        f"{run.results(subset)}: contains {said}, but {file} has {found}; run {EVALUATE} {run.path} again"
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
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
