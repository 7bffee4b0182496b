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

from ..cli.progress import Progress
from ..data import folders
from ..data.images import image_folder
from ..data.images.image_folder import ImageData
from ..runs.made_from import reuse
from ..runs.run import Results, Run, Scored
from . import significance
from .rows import Row
from .significance import Paired
from .task import (
    LAST,
    NLL,
    TOLERANCE,
    Batch,
    Candidate,
    ExampleTask,
    Measure,
    ScoringJob,
    Studied,
    Words,
    cannot_compare,
    mean_of_sums,
    not_scored,
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
class Answer(Row):
    """The prediction for one image. label: its class; given: the predicted class; nll: -ln p(label)."""

    digits = 5
    label: int
    given: int
    nll: float


def error_of(given: Sequence[Answer]) -> float:
    return 100 * sum(wrong(given)) / len(given)


def nll_of(given: Sequence[Answer]) -> float:
    return statistics.fmean(one.nll for one in given)


def wrong(given: Sequence[Answer]) -> list[bool]:
    return [one.label != one.given for one in given]


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
        log_probabilities, target = self._log_probabilities(model).cpu(), self.target.cpu()
        nll = -log_probabilities.gather(1, target.unsqueeze(1)).squeeze(1)
        return list(map(Answer, target.tolist(), log_probabilities.argmax(dim=1).tolist(), nll.tolist()))

    @property
    def predicted(self) -> int:
        return len(self.target)


def batches_of(loaded: Loaded, subset: str, chosen: Sequence[int], together: int) -> Iterator[ImageBatch]:
    """Yield the chosen images of a loaded split in batches of `together`."""
    dataset = loaded.task.dataset(subset)
    for start in range(0, len(chosen), together):
        sample = loaded.moved(dataset.collater(list(chosen[start : start + together])))
        yield ImageBatch(sample["net_input"], sample["target"])


def answers_of(run: Run, subset: str) -> list[Answer]:
    """Read the predictions that an evaluated run made with its last checkpoint."""
    return Answer.read(run.decoded(subset, LAST, "images"))


def answers(job: ScoringJob[ImageData]) -> list[Answer]:
    """Return the predictions of the last checkpoint for all images of a split, in order.

    The file in RUN/decode is reused if its inputs have not changed.
    """
    file = job.decoded(LAST, "images")

    def answer() -> list[Answer]:
        import torch

        from .loading import load

        loaded = load(job.run, job.run.last, job.data.path, job.cpu)
        job.task.load_examples(loaded, job.subset)
        count = len(loaded.task.dataset(job.subset))
        given: list[Answer] = []
        with torch.no_grad(), Progress(f"{job.subset} of {job.run.last.name}", count, "images") as progress:
            for batch in batches_of(loaded, job.subset, range(count), TOGETHER):
                given += batch.answers(loaded.model)
                progress.advance(batch.predicted)
        Answer.write(file, given)
        return given

    inputs = [job.run.last, job.data.path / f"{job.subset.split('+')[0]}.npy"]
    return reuse(file, file.with_suffix(".json"), inputs, Answer.read, answer)


def scored(given: Sequence[Answer], digits: int) -> dict[str, Scored]:
    scores = {ERROR: error_of(given), NLL: nll_of(given)}
    return {name: Scored(round(value, digits), SIGNATURES[name]) for name, value in scores.items()}


def _error_parts(run: Run, subset: str) -> list[list[float]]:
    return [[float(each), 1.0] for each in wrong(answers_of(run, subset))]


def _nll_parts(run: Run, subset: str) -> list[list[float]]:
    return [[one.nll, 1.0] for one in answers_of(run, subset)]


MEASURES = {
    ERROR: Measure(_error_parts, lambda summed: 100 * mean_of_sums(summed), 2, True),
    NLL: Measure(_nll_parts, mean_of_sums, 4, True),
}


class ImageClassification(ExampleTask[ImageData]):
    folder = folders.IMAGES
    score_name = ERROR
    words = Words("image", "image")
    # There is no floor, because the error of random guessing depends on the number of classes.
    studied = Studied(measures=MEASURES, best=LAST, curve="valid error", kept_files=("*.images",))
    shows_spread = True
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

    def nll(self, job: ScoringJob[ImageData], model: str) -> float:
        return nll_of(answers(job))

    def score(self, job: ScoringJob[ImageData], results: Results, lock: int) -> tuple[Results, list[str]]:
        given = answers(job)
        error, (low, high) = error_of(given), significance.wilson(wrong(given))
        line = (
            f"error {error:.2f}% (95% interval {low:.2f} to {high:.2f} over images), accuracy {100 - error:.2f}%, "
            f"NLL {nll_of(given):.4f} {SIGNATURES[NLL]}"
        )
        return replace(results, sentences=len(given), scores={LAST: scored(given, 4)}), [line]

    def score_together(
        self, jobs: Sequence[ScoringJob[ImageData]], model: str, tests: Mapping[str, Sequence[str]]
    ) -> dict[str, Scored]:
        made: dict[str, Scored] = {}
        for measure in MEASURES:
            given = [one for job in jobs if job.subset in tests[measure] for one in answers_of(job.run, job.subset)]
            made[measure] = scored(given, 5)[measure]
        return made

    def load_examples(self, loaded: Loaded, subset: str) -> None:
        loaded.task.datasets[subset] = loaded.task.open(subset)

    def fits(self, loaded: Loaded, subset: str) -> np.ndarray:
        return np.ones(len(loaded.task.dataset(subset)), dtype=bool)

    def batches(self, loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
        return batches_of(loaded, subset, chosen, ANALYSED_TOGETHER)

    def signature(self, results: Results) -> str:
        return SIGNATURES[ERROR]

    def table_scores(self, run: Run, results: Results) -> tuple[str, str]:
        return f"{self.main_score(run, results, LAST):.2f}", f"{score_of(run, results, LAST, NLL):.4f}"

    def read_outputs(
        self, run: Run, subset: str, results: Results, model: str, data: Path | None
    ) -> tuple[float, list[Answer]]:
        given, said = answers_of(run, subset), self.main_score(run, results, LAST)
        if abs(said - error_of(given)) > TOLERANCE:
            error, file = f"{error_of(given):.2f}%", run.decoded(subset, LAST, "images")
            raise not_scored(run, subset, f"an error of {said:.2f}%", file, error)
        return said, given

    def check_comparable(self, first: Candidate, other: Candidate) -> None:
        if [one.label for one in other.outputs] != [one.label for one in first.outputs]:
            raise cannot_compare(first, other, "evaluated on different images")

    def interval(self, candidate: Candidate) -> tuple[float, float]:
        return significance.wilson(wrong(candidate.outputs))

    def test(self, candidate: Candidate, baseline: Candidate) -> Paired:
        return significance.mcnemar(wrong(candidate.outputs), wrong(baseline.outputs))

    def notes(self, baseline: Candidate) -> list[str]:
        results = baseline.results
        return [
            f"{results.corpus} {results.subset}, {results.sentences:,} images, {SIGNATURES[ERROR]}",
            "95% intervals over images: of the error for the first run (Wilson), of the difference for the others "
            "(Wald, paired); exact McNemar test",
        ]

    def spread(self, seeds: Sequence[Candidate]) -> str:
        return f"error {significance.over_runs([each.score for each in seeds])}"


IMAGE_CLASSIFICATION = ImageClassification()
