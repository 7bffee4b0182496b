"""What a kind of task is to evaluation, comparison, tables, analysis, studies and reports, which are written once.

There is one object for each kind, listed in kinds.py: translating.py, classifying.py. A new kind is such an object,
fairseq's own task if it needs one, and the preparation of its data folders (data/folders.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .. import records
from ..data.folders import FolderKind
from ..foreign import say
from ..runs.run import Results, Run, Scored
from ..runs.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .loading import Loaded

NLL = "NLL"  # among the scores of every kind
LAST = "last"  # the model that every kind scores
POSITIONS = 64  # that have a figure of their own; later ones count as the last
FREQUENCIES = 8  # classes of tokens by their rank in dict.txt: the 1st to 10th, 11th to 30th, 31st to 100th, ...

TableRows = list[tuple[str, ...]]


class Data(Protocol):
    """A data folder that was read: what results.json says of it."""

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


@dataclass(frozen=True)
class ScoredModel:
    """A model of a run that is scored: its name in results.json, its file, the checkpoints that it is made from."""

    name: str
    file: Path
    made_from: list[Path]


@dataclass(frozen=True)
class ScoringJob(Generic[D]):
    """One run's evaluation on one part of the data, its inputs found and checked.

    averages: the checkpoints that each average is made from, by the average's name; none if the kind has no averages
    is_training_data: the model was trained on this part of the data
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

    def models(self) -> list[ScoredModel]:
        """Return every model that is scored: the averages, and the last checkpoint."""
        averages = [ScoredModel(name, self.run.average(name), files) for name, files in self.averages.items()]
        return [*averages, ScoredModel(LAST, self.run.last, [self.run.last])]

    def decoded(self, name: str, kind: str) -> Path:
        """Return the path of what was computed with a model, RUN/decode/SUBSET.NAME.KIND."""
        return self.run.decode / f"{self.subset}.{name}.{kind}"


@dataclass(frozen=True)
class Candidate:
    """An evaluated run that is compared with others.

    model: whose score and outputs these are; outputs: what the task needs to test them
    setting: the training's command without what differs between seeds
    """

    path: Path
    results: Results
    task: Task[Any]
    model: str
    score: float
    outputs: Any
    setting: str
    seed: str

    @property
    def name(self) -> str:
        return Run(self.path).name


@dataclass(frozen=True)
class Texts:
    """What a reader sees of a comparison: sources, references, and what every candidate made of them, by its name."""

    sources: list[str]
    references: list[str]
    outputs: dict[str, list[str]]


@dataclass(frozen=True)
class Measure:
    """A score of a model on a test set, as a study tests it.

    parts: of a run and a test set, (examples, k): what is added up over examples
    score: of the k sums over examples; digits: that are shown; is_less_better: what a good model has
    """

    parts: Callable[[Run, str], list[list[float]]]
    score: Callable[[np.ndarray], float]
    digits: int
    is_less_better: bool


def mean_of_sums(summed: np.ndarray) -> float:
    """Return a mean, of a sum and a count."""
    return float(summed[0] / summed[1])


class Batch(ABC):
    """Examples that a model reads together, for analysis."""

    net_input: dict[str, Any]

    @abstractmethod
    def nll(self, model: Any) -> Tensor:
        """Return the NLL in nats of everything that is predicted, 0 at padding; it sums to that of the examples."""

    @property
    @abstractmethod
    def predicted(self) -> int:
        """How much is predicted: target tokens, or images."""

    @abstractmethod
    def kept(self, stack: str) -> Tensor | None:
        """Return where a stack's positions are no padding; None if there is none."""

    @abstractmethod
    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        """Return how positions are classed, by what: the class of each, and how many there are."""

    @abstractmethod
    def by_example(self, state: Tensor) -> Tensor:
        """Return a state with the examples in its first dimension."""


class Task(ABC, Generic[D]):
    """A kind of task.

    folder: its data folders; example: one of what a data folder holds; prediction: what the NLL is a mean over
    has_averages: whether averages of checkpoints are scored; if not, the last checkpoint alone is
    best: the model whose scores are compared by a study
    shows_spread: evaluation of several runs ends with their spread over seeds
    can_decode: its models decode, with attention to a source

    table_headings: of scores and speed in a table of runs; headings: of a comparison
    measures: of a study, by name; shown: further scores in its table
    floor: a measure, and the mean below which an arm did not train, so that testing its scores says nothing
    curve: a quantity of analysis/curves.py, the validation that a study follows by epoch
    kept_files: patterns of the files in RUN/decode that a study keeps
    """

    folder: FolderKind
    example: str
    prediction: str
    has_averages: bool
    best: str
    shows_spread = False
    can_decode = False
    table_headings: tuple[str, str, str]
    headings: tuple[str, ...]
    measures: Mapping[str, Measure]
    shown: tuple[str, ...] = ()
    floor: tuple[str, float] | None = None
    curve: str
    kept_files: tuple[str, ...]

    @property
    def examples(self) -> str:
        return f"{self.example}s"

    # ---------------------------------------------------------------------------------------------------- evaluation

    @abstractmethod
    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> D:
        """Read a data folder and check that it has a part `subset` that fits the model of a run's last checkpoint.

        Raises: ValueError or OSError naming what is missing or does not fit.
        """

    @abstractmethod
    def nll(self, job: ScoringJob[D], model: ScoredModel) -> float:
        """Return a model's NLL of what the data predict, in nats."""

    @abstractmethod
    def score(self, job: ScoringJob[D], results: Results, lock: int) -> tuple[Results, list[str]]:
        """Return the results completed by the scores of every model, and what evaluation says of them, in lines.

        lock: of the run folder, for the commands that work in it
        """

    @abstractmethod
    def not_as_published(self, job: ScoringJob[D]) -> list[str]:
        """Return why the scores cannot be put beside published ones, a phrase each."""

    # ----------------------------------------------------------------------------------------------- reading results

    @abstractmethod
    def has_made(self, results: Results) -> bool:
        """Say whether results are of this kind."""

    @abstractmethod
    def signature(self, results: Results) -> str:
        """Return which score the table shows."""

    @abstractmethod
    def table_scores(self, run: Run, results: Results) -> tuple[str, str]:
        """Return both scores of a run in the table."""

    @abstractmethod
    def bleu(self, results: Results) -> float | None:
        """Return the BLEU that `--at-least` bounds; None if this kind has none."""

    # ---------------------------------------------------------------------------------------------------- comparison

    @abstractmethod
    def read_outputs(self, run: Run, subset: str, results: Results, model: str, data: Path | None) -> tuple[float, Any]:
        """Return the score of a model, and its outputs on a part of the data as a comparison needs them.

        Raises: ValueError or OSError naming the file that is missing, damaged, or not of these results.
        """

    @abstractmethod
    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        """Raise ValueError naming both runs and what differs if they cannot be compared."""

    @abstractmethod
    def compare(self, candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
        """Return a row for every candidate, tested against the first one, and notes, first what they are of."""

    def list_apart(self, candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows]:
        """Return headings and a row for every candidate, without tests against each other."""
        rows = [(each.name, each.results.architecture, f"{each.score:.2f}") for each in candidates]
        return self.headings[:3], list(rows)

    @abstractmethod
    def spread(self, scores: list[float]) -> str:
        """Return what is said of the scores of several seeds."""

    def setting_name(self, candidate: Candidate) -> str:
        """Return how a line on several seeds names what they have in common."""
        return candidate.results.architecture

    def texts(self, candidates: Sequence[Candidate]) -> Texts | None:
        """Return what candidates made of the same text; None if this kind makes no text."""
        return None

    # ------------------------------------------------------------------------------------------------------- studies

    @abstractmethod
    def score_together(
        self, jobs: Sequence[ScoringJob[D]], model: str, tests: Mapping[str, Sequence[str]]
    ) -> dict[str, Scored]:
        """Return a model's scores, each on the test sets of its measure as if they were one; tests: by measure."""

    # ------------------------------------------------------------------------------------------------------ analysis

    @abstractmethod
    def load_examples(self, loaded: Loaded, subset: str) -> None:
        """Load a part of the data into fairseq's task, not augmented.

        Raises: ValueError if the data folder has no such part.
        """

    @abstractmethod
    def fits(self, loaded: Loaded, subset: str) -> np.ndarray:
        """Return, of every example of a loaded part, whether the model can read it."""

    @abstractmethod
    def batches(self, loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
        """Yield the chosen examples in batches of at most so many padded positions on a side."""


def article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def is_kept(file: Path, note: Path, mine: Any, made: str) -> bool:
    """Return whether a file is there and the note beside it says that it was made as `mine` says; print that."""
    kept = file.is_file() and records.remembered(note, type(mine)) == mine
    if kept:
        say(f"{file}: made from {made}, kept")
    return bool(kept)
