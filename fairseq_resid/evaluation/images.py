"""From an image model to its error: every image of a split given to the last checkpoint.

Checkpoints are not averaged: the running statistics of batch normalisation are no mean of anything.
RUN/decode/SUBSET.last.images holds a line for every image: its class, the class that the model gives it, the NLL.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import records
from ..cli.progress import Progress
from ..data.images import folder as images
from ..data.images.folder import ImageRecord
from ..files import MOST_COUNT, MOST_NUMBER, bounded, read_rows, write_text
from ..foreign import say
from ..runs.run import Fingerprint, Results, Run, Scored
from ..runs.trained_on import find_data, is_trained_on

LAST = "last"  # the only model of an image run
ERROR, NLL = "error", "NLL"  # among the scores
UNITS = {ERROR: "percent of the images, last checkpoint", NLL: "nats an image"}
TOGETHER = 500  # images of a batch; the result does not depend on it
LEVEL = 0.95


@dataclass(frozen=True)
class ImageJob:
    """One image run's evaluation, its inputs found and checked."""

    run: Run
    data: Path
    known: ImageRecord
    subset: str
    architecture: str
    parameters: int
    cpu: bool
    is_training_data: bool = False


@dataclass(frozen=True)
class Answer:
    """What a model says of one image: its class, the class that the model gives it, and -ln p of the former."""

    label: int
    given: int
    nll: float

    @property
    def is_wrong(self) -> bool:
        return self.label != self.given


@dataclass(frozen=True)
class AnswersNote:
    """decode/SUBSET.last.json: all that the answers beside it depend on."""

    checkpoint: Fingerprint
    data: str
    file: Fingerprint


def find(
    run: Run, state: dict[str, Any], data: Path | None, subset: str, architecture: str, parameters: int, cpu: bool
) -> ImageJob:
    """Find and check everything that the evaluation of one image run needs, before anything is computed.

    Raises: ValueError or OSError naming what is missing.
    """
    folder = data or find_data(run, state)
    known = images.check(folder)
    for split in subset.split("+"):
        images.open_split(folder, split, known)
    weight = state["model"].get("classify.weight")
    if weight is not None and weight.size(0) != len(known.classes):
        raise ValueError(f"{folder}: {len(known.classes)} classes, but {run.last} was trained with {weight.size(0)}")
    return ImageJob(
        run, folder, known, subset, architecture, parameters, cpu, is_trained_on(state.get("cfg") or {}, subset)
    )


def answers_file(run: Run, subset: str) -> Path:
    return run.decode / f"{subset}.{LAST}.images"


def write(path: Path, answers: Sequence[Answer]) -> None:
    """Write a line for every image: class, class given, NLL, parted by tabs."""
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(f"{one.label}\t{one.given}\t{one.nll:.5f}\n" for one in answers))


def read(path: Path) -> list[Answer]:
    """Read what `write` wrote.

    Raises: ValueError naming file and line.
    """

    def one(fields: list[str]) -> Answer:
        label, given, nll = fields
        return Answer(
            bounded(int(label), 0, MOST_COUNT),
            bounded(int(given), 0, MOST_COUNT),
            bounded(float(nll), -MOST_NUMBER, MOST_NUMBER),
        )

    return read_rows(path, one, "class, class given and NLL")


def answer(job: ImageJob) -> list[Answer]:
    """Return what the last checkpoint says of every image of a split, in order."""
    import torch
    from fairseq import checkpoint_utils, utils

    from .. import tasks  # noqa: F401  (and the architectures)

    overrides = {"data": str(job.data)}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(job.run.last)], overrides)
    on_gpu = torch.cuda.is_available() and not job.cpu
    model = (model.cuda() if on_gpu else model).eval()
    dataset = task.open(job.subset)
    found: list[Answer] = []
    with (
        torch.no_grad(),
        Progress(f"{job.subset} of {job.run.last.name}", len(dataset), "images") as progress,
    ):
        for start in range(0, len(dataset), TOGETHER):
            sample = dataset.collater(list(range(start, min(start + TOGETHER, len(dataset)))))
            target = sample["target"]
            sample = utils.move_to_cuda(sample) if on_gpu else sample
            log_probabilities = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True).cpu()
            nll = -log_probabilities.gather(1, target.unsqueeze(1)).squeeze(1)
            given = log_probabilities.argmax(dim=1)
            found += map(Answer, target.tolist(), given.tolist(), nll.tolist())
            progress.advance(len(target))
    return found


def answers(job: ImageJob) -> list[Answer]:
    """Return `answer(job)`, from RUN/decode if it is there and of the same inputs."""
    file = answers_file(job.run, job.subset)
    note = file.with_suffix(".json")
    part = job.data / f"{job.subset.split('+')[0]}.npy"
    mine = AnswersNote(Fingerprint.of(job.run.last), str(job.data.resolve()), Fingerprint.of(part))
    if file.is_file() and records.remembered(note, AnswersNote) == mine:
        say(f"{file}: made from the same files, kept")
        return read(file)
    found = answer(job)
    write(file, found)
    records.write(note, mine)
    return found


def error(found: Sequence[Answer]) -> float:
    """Return the share of wrong answers in percent."""
    return 100 * sum(one.is_wrong for one in found) / len(found)


def interval(found: Sequence[Answer]) -> tuple[float, float]:
    """Return the 95% interval of the error of this one model over images like these, in percent (Wilson)."""
    from scipy.stats import binomtest

    between = binomtest(sum(one.is_wrong for one in found), len(found)).proportion_ci(LEVEL, method="wilson")
    return 100 * between.low, 100 * between.high


def score(job: ImageJob) -> Results:
    """Do what the module says, in a run folder that nobody else works in, and write the results."""
    found = answers(job)
    scores = {ERROR: error(found), NLL: statistics.fmean(one.nll for one in found)}
    results = Results(
        architecture=job.architecture,
        parameters=job.parameters,
        corpus=job.known.name,
        subset=job.subset,
        training=job.run.training_summary(),
        data=str(job.data),
        sentences=len(found),
        scores={LAST: {name: Scored(round(value, 4), UNITS[name]) for name, value in scores.items()}},
        is_training_data=job.is_training_data,
        not_as_released=list(job.known.differences),
        unverified=list(job.known.unverified),
        preparation=job.known.asked,
    )
    records.write(job.run.results(job.subset), results)
    low, high = interval(found)
    trained = " (the model was trained on it)" if job.is_training_data else ""
    say(
        f"{job.run.path} {job.subset}{trained}: error {scores[ERROR]:.2f}% (95% interval {low:.2f} to {high:.2f} over "
        f"images), accuracy {100 - scores[ERROR]:.2f}%, NLL {scores[NLL]:.4f} {UNITS[NLL]}",
    )
    return results


def score_of(run: Run, results: Results, measure: str) -> float:
    """Return a score of the last model.

    Raises: ValueError naming the file that lacks it.
    """
    try:
        return results.scores[LAST][measure].score
    except KeyError:
        raise ValueError(f"{run.results(results.subset)}: scores: {LAST} has no {measure}") from None


def over_runs(errors: Sequence[float]) -> str:
    """Return mean, standard deviation, median and the 95% interval of the mean over runs (Student's t), on a line."""
    from scipy.stats import t

    mean, middle = statistics.fmean(errors), statistics.median(errors)
    if len(errors) < 2:
        return f"{mean:.2f}%"
    sd = statistics.stdev(errors)
    half = float(t.ppf((1 + LEVEL) / 2, len(errors) - 1)) * sd / math.sqrt(len(errors))
    return f"mean {mean:.2f} ± {sd:.2f}%, 95% interval {mean - half:.2f} to {mean + half:.2f}, median {middle:.2f}%"


@dataclass(frozen=True)
class Paired:
    """Two models on the same images. difference: of the errors, in percent; p: exact McNemar test."""

    difference: float
    low: float
    high: float
    p: float


def paired(mine: Sequence[Answer], baseline: Sequence[Answer]) -> Paired:
    """Return how the error of one model differs from another's, with its 95% interval over images (Wald, paired)."""
    from scipy.stats import binomtest, norm

    worse = sum(one.is_wrong and not other.is_wrong for one, other in zip(mine, baseline, strict=True))
    better = sum(other.is_wrong and not one.is_wrong for one, other in zip(mine, baseline, strict=True))
    size, apart = len(mine), worse - better
    half = float(norm.ppf((1 + LEVEL) / 2)) * math.sqrt(max(worse + better - apart**2 / size, 0.0)) / size
    p = float(binomtest(worse, worse + better).pvalue) if worse + better else 1.0
    return Paired(100 * apart / size, 100 * (apart / size - half), 100 * (apart / size + half), p)


HEADINGS = ("run", "architecture", "error %", "difference", "95% interval", "p McNemar")


def compared(paths: Sequence[Path], subset: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return a row for every evaluated run, each tested against the first one on the same images, and notes.

    Raises: ValueError or FileNotFoundError naming the file that is missing, damaged, or of other images.
    """
    runs = [Run(path) for path in paths]
    found = [read(answers_file(run, subset)) for run in runs]
    results = [run.read_results(subset) for run in runs]
    rows: list[tuple[str, ...]] = []
    for run, mine, known in zip(runs, found, results, strict=True):
        if [one.label for one in mine] != [one.label for one in found[0]]:
            raise ValueError(f"{runs[0].path} and {run.path} cannot be compared: they answered for other images")
        said = score_of(run, known, ERROR)
        if abs(said - error(mine)) > 1e-3:
            raise ValueError(
                f"{run.results(subset)}: says an error of {said:.2f}%, but {answers_file(run, subset)} has "
                f"{error(mine):.2f}%: evaluate {run.path} again"
            )
        tests = ("", "{:.2f} to {:.2f}".format(*interval(mine)), "baseline")
        if rows:
            than = paired(mine, found[0])
            tests = (f"{than.difference:+.2f}", f"{than.low:+.2f} to {than.high:+.2f}", f"{than.p:.4f}")
        rows.append((run.name, known.architecture, f"{error(mine):.2f}", *tests))
    first = results[0]
    notes = [
        f"{first.corpus} {subset}, {first.sentences:,} images, {UNITS[ERROR]}",
        "95% interval over images: of the first error (Wilson), of the others' difference (Wald, paired); exact test",
    ]
    return rows, notes
