"""Image classification: the error and the NLL of the last checkpoint.

RUN/decode/SUBSET.last.images has one line per image: its class, the predicted class and the NLL. Checkpoints are not
averaged, because averaged batch-norm statistics do not match the averaged weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import records
from ..cli.progress import Progress
from ..data import folders
from ..data.images import image_folder
from ..data.images.image_folder import ImageData
from ..files import read_rows, write_text
from ..runs.made_from import MadeFrom, is_reused
from ..runs.run import EVALUATE, Results, Run, Scored
from . import significance
from .task import (
    LAST,
    NLL,
    Analysed,
    Batch,
    Candidate,
    Measure,
    ScoredModel,
    ScoringJob,
    Studied,
    TableRows,
    Task,
    Words,
    mean_of_sums,
    score_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from .loading import Loaded

ERROR = "error"  # the name of the score
SIGNATURES = {ERROR: "percent of the images, last checkpoint", NLL: "nats an image"}
TOGETHER = 500  # images per batch; the result does not depend on this
ANALYSED_TOGETHER = 100  # in analysis, which needs more memory per image


@dataclass(frozen=True)
class Answer:
    """The prediction for one image. label: its class; given: the predicted class; nll: -ln p(label)."""

    label: int
    given: int
    nll: float

    @property
    def is_wrong(self) -> bool:
        return self.label != self.given


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write one line per image: class, predicted class and NLL, separated by tabs."""
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(f"{one.label}\t{one.given}\t{one.nll:.5f}\n" for one in answers))


def read_answers(path: Path) -> list[Answer]:
    """Read a file written by `write_answers`.

    Raises: ValueError naming the file and line.
    """

    def one(fields: list[str]) -> Answer:
        label, given, nll = fields
        return Answer(int(label), int(given), float(nll))

    return read_rows(path, one, "class, predicted class and NLL")


def error_of(answers: Sequence[Answer]) -> float:
    """Return the error rate in percent."""
    return 100 * sum(one.is_wrong for one in answers) / len(answers)


def nll_of(answers: Sequence[Answer]) -> float:
    return statistics.fmean(one.nll for one in answers)


def wrong(answers: Sequence[Answer]) -> list[bool]:
    return [one.is_wrong for one in answers]


def interval(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return the 95% confidence interval (Wilson) of the error over images, in percent."""
    return significance.wilson(sum(wrong(answers)), len(answers))


@dataclass(frozen=True)
class ImageBatch(Batch):
    """A batch of images. target: (N,), their classes."""

    net_input: dict[str, Any]
    target: Tensor

    def nll(self, model: Any) -> Tensor:
        return -self._log_probabilities(model).gather(1, self.target.unsqueeze(1)).squeeze(1)

    def _log_probabilities(self, model: Any) -> Tensor:
        log_probabilities: Tensor = model.get_normalized_probs(model(**self.net_input), log_probs=True)
        return log_probabilities

    def answers(self, model: Any) -> list[Answer]:
        """Return the prediction of a model for each image."""
        log_probabilities, target = self._log_probabilities(model).cpu(), self.target.cpu()
        nll = -log_probabilities.gather(1, target.unsqueeze(1)).squeeze(1)
        return list(map(Answer, target.tolist(), log_probabilities.argmax(dim=1).tolist(), nll.tolist()))

    @property
    def predicted(self) -> int:
        return len(self.target)

    def kept(self, stack: str) -> Tensor | None:
        return None

    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        return {}

    def by_example(self, state: Tensor) -> Tensor:
        return state


def batches_of(loaded: Loaded, subset: str, chosen: Sequence[int], together: int) -> Iterator[ImageBatch]:
    """Yield the chosen images of a loaded split in batches of `together`."""
    dataset = loaded.task.dataset(subset)
    for start in range(0, len(chosen), together):
        sample = loaded.moved(dataset.collater(list(chosen[start : start + together])))
        yield ImageBatch(sample["net_input"], sample["target"])


def answers_file(run: Run, subset: str) -> Path:
    return run.file(f"decode/{subset}.{LAST}.images")


def answers_of(run: Run, subset: str) -> list[Answer]:
    """Read the predictions that an evaluated run made with its last checkpoint."""
    return read_answers(answers_file(run, subset))


def answer(job: ScoringJob[ImageData]) -> list[Answer]:
    """Return the predictions of the last checkpoint for all images of a split, in order."""
    import torch

    from .loading import load

    loaded = load(job.run, job.run.last, job.data.path, job.cpu)
    job.task.analysed.load(loaded, job.subset)
    count = len(loaded.task.dataset(job.subset))
    given: list[Answer] = []
    with torch.no_grad(), Progress(f"{job.subset} of {job.run.last.name}", count, "images") as progress:
        for batch in batches_of(loaded, job.subset, range(count), TOGETHER):
            given += batch.answers(loaded.model)
            progress.advance(batch.predicted)
    return given


def remembered_answers(job: ScoringJob[ImageData]) -> list[Answer]:
    """Return `answer(job)`, reusing the file in RUN/decode if its inputs have not changed."""
    file = answers_file(job.run, job.subset)
    note = file.with_suffix(".json")
    inputs = [job.run.last, job.data.path / f"{job.subset.split('+')[0]}.npy"]
    if is_reused(file, note, inputs):
        return read_answers(file)
    mine, given = MadeFrom.of(inputs), answer(job)
    write_answers(file, given)
    records.write(note, mine)
    return given


def scored(given: Sequence[Answer], digits: int) -> dict[str, Scored]:
    """Return the error and the NLL, with their signatures."""
    scores = {ERROR: error_of(given), NLL: nll_of(given)}
    return {name: Scored(round(value, digits), SIGNATURES[name]) for name, value in scores.items()}


def _error_parts(run: Run, subset: str) -> list[list[float]]:
    return [[float(one.is_wrong), 1.0] for one in answers_of(run, subset)]


def _nll_parts(run: Run, subset: str) -> list[list[float]]:
    return [[one.nll, 1.0] for one in answers_of(run, subset)]


def _percent(summed: np.ndarray) -> float:
    return 100 * mean_of_sums(summed)


MEASURES = {ERROR: Measure(_error_parts, _percent, 2, True), NLL: Measure(_nll_parts, mean_of_sums, 4, True)}


def score_together(
    jobs: Sequence[ScoringJob[ImageData]], model: str, tests: Mapping[str, Sequence[str]]
) -> dict[str, Scored]:
    made: dict[str, Scored] = {}
    for measure in MEASURES:
        given = [one for job in jobs if job.subset in tests[measure] for one in answers_of(job.run, job.subset)]
        made[measure] = scored(given, 5)[measure]
    return made


def load_examples(loaded: Loaded, subset: str) -> None:
    loaded.task.datasets[subset] = loaded.task.open(subset)


def all_fit(loaded: Loaded, subset: str) -> np.ndarray:
    return np.ones(len(loaded.task.dataset(subset)), dtype=bool)


def analysis_batches(loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
    return batches_of(loaded, subset, chosen, ANALYSED_TOGETHER)


# There is no floor, because the error of random guessing depends on the number of classes.
STUDIED = Studied(
    measures=MEASURES, best=LAST, curve="valid error", kept_files=("*.images",), score_together=score_together
)


class ImageClassification(Task[ImageData]):
    """Image classification."""

    folder = folders.IMAGES
    words = Words("image", "image")
    studied = STUDIED
    analysed = Analysed(load_examples, all_fit, analysis_batches)
    has_averages, shows_spread = False, True
    table_headings = ("error %", "NLL", "images/s")
    headings = ("run", "architecture", "error %", "difference", "95% interval", "p McNemar")

    def open_data(self, path: Path, subset: str, run: Run, state: dict[str, Any]) -> ImageData:
        record = image_folder.ImageRecord.checked(path)
        for split in subset.split("+"):
            image_folder.open_split(path, split, record)
        return ImageData(path, record)

    def test_set(self, results: Results) -> str:
        checksums = image_folder.ImageRecord.of(Path(results.data)).checksums
        return " ".join(checksums.get(f"{split}.npy", "") for split in results.subset.split("+"))

    def nll(self, job: ScoringJob[ImageData], model: ScoredModel) -> float:
        return nll_of(remembered_answers(job))

    def score(self, job: ScoringJob[ImageData], results: Results, lock: int) -> tuple[Results, list[str]]:
        given = remembered_answers(job)
        error, (low, high) = error_of(given), interval(given)
        line = (
            f"error {error:.2f}% (95% interval {low:.2f} to {high:.2f} over images), accuracy {100 - error:.2f}%, "
            f"NLL {nll_of(given):.4f} {SIGNATURES[NLL]}"
        )
        return replace(results, sentences=len(given), scores={LAST: scored(given, 4)}), [line]

    def not_as_published(self, job: ScoringJob[ImageData]) -> list[str]:
        return ["no published score of an image model is known to this version"]

    def has_made(self, results: Results) -> bool:
        return ERROR in results.scores.get(LAST, {})

    def signature(self, results: Results) -> str:
        return SIGNATURES[ERROR]

    def table_scores(self, run: Run, results: Results) -> tuple[str, str]:
        return f"{score_of(run, results, LAST, ERROR):.2f}", f"{score_of(run, results, LAST, NLL):.4f}"

    def read_outputs(
        self, run: Run, subset: str, results: Results, model: str, data: Path | None
    ) -> tuple[float, list[Answer]]:
        given = answers_of(run, subset)
        said, error = score_of(run, results, LAST, ERROR), error_of(given)
        if abs(said - error) > 1e-3:
            raise ValueError(
                f"{run.results(subset)}: contains an error of {said:.2f}%, but "
                f"{answers_file(run, subset)} has {error:.2f}%; run {EVALUATE} {run.path} again"
            )
        return said, given

    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        if [one.label for one in other.outputs] != [one.label for one in first.outputs]:
            raise ValueError(f"{first.path} and {other.path} cannot be compared: evaluated on different images")

    def compare(self, candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
        baseline, rows = candidates[0], self.list_apart(candidates[:1])[1]
        for each in candidates[1:]:
            than = significance.mcnemar(wrong(each.outputs), wrong(baseline.outputs))
            tests = (f"{than.difference:+.2f}", f"{than.low:+.2f} to {than.high:+.2f}", f"{than.p:.4f}")
            rows.append((each.name, each.results.architecture, f"{error_of(each.outputs):.2f}", *tests))
        results = baseline.results
        return rows, [
            f"{results.corpus} {results.subset}, {results.sentences:,} images, {SIGNATURES[ERROR]}",
            "95% intervals over images: of the error for the first run (Wilson), of the difference for the others "
            "(Wald, paired); exact McNemar test",
        ]

    def list_apart(self, candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows]:
        rows: TableRows = []
        for each in candidates:
            low, high = interval(each.outputs)
            tests = ("", f"{low:.2f} to {high:.2f}", "" if rows else "baseline")
            rows.append((each.name, each.results.architecture, f"{error_of(each.outputs):.2f}", *tests))
        return self.headings, rows

    def spread(self, seeds: Sequence[Candidate]) -> str:
        return f"error {significance.over_runs([each.score for each in seeds])}"


IMAGE_CLASSIFICATION = ImageClassification()
