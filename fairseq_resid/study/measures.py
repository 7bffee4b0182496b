"""The measures of a study: what each adds up over sentences or images, from what is kept of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..evaluation import images, likelihood, scoring
from ..files import MOST_COUNT, bounded, read_rows
from ..runs.run import Run


def _mean(summed: np.ndarray) -> float:
    return float(summed[0] / summed[1])


def _percent(summed: np.ndarray) -> float:
    return 100 * _mean(summed)


def _nll(run: Run, subset: str) -> list[list[float]]:
    return [[one.nll, one.tokens] for one in likelihood.read(run.decode / f"{subset}.averaged.nll")]


def _bleu(run: Run, subset: str) -> list[list[float]]:
    def counts(fields: list[str]) -> list[float]:
        return [bounded(float(field), 0, MOST_COUNT) for field, _ in zip(fields, range(10), strict=True)]

    return read_rows(run.decode / f"{subset}.averaged.bleu", counts, "two lengths and eight counts of n-grams")


def _error(run: Run, subset: str) -> list[list[float]]:
    return [[float(one.is_wrong), 1.0] for one in images.read(images.answers_file(run, subset))]


def _image_nll(run: Run, subset: str) -> list[list[float]]:
    return [[one.nll, 1.0] for one in images.read(images.answers_file(run, subset))]


@dataclass(frozen=True)
class Measure:
    """A score of a model on a test set.

    parts: of a run and a test set, (sentences, k): what is added up over sentences, or images
    score: of the k sums over sentences; digits: that are shown; is_less_better: what a good model has
    """

    parts: Callable[[Run, str], list[list[float]]]
    score: Callable[[np.ndarray], float]
    digits: int
    is_less_better: bool


@dataclass(frozen=True)
class Kind:
    """What a kind of model is measured by.

    model: whose scores count; example: what a test set consists of; curve: a quantity of `curves`, the validation that
    is followed by epoch
    shown: other scores, in the table alone
    floor: a measure, and the mean below which an arm did not train, so that testing its scores says nothing. Images
        have none: the error of guessing depends on the number of classes, which a study does not know.
    """

    measures: dict[str, Measure]
    model: str
    example: str
    curve: str
    shown: tuple[str, ...] = ()
    floor: tuple[str, float] | None = None


TRANSLATION = Kind(
    {"NLL": Measure(_nll, _mean, 4, True), "BLEU": Measure(_bleu, scoring.bleu_of, 2, False)},
    "averaged",
    "sentences",
    "valid NLL",
    ("chrF",),
    ("BLEU", 10.0),
)
IMAGES = Kind(
    {"error": Measure(_error, _percent, 2, True), "NLL": Measure(_image_nll, _mean, 4, True)},
    images.LAST,
    "images",
    "valid error",
)


def kind(measure: str) -> Kind:
    """Return what a study of this measure compares: models of images have an error, translations have none."""
    return IMAGES if measure in IMAGES.measures and measure not in TRANSLATION.measures else TRANSLATION
