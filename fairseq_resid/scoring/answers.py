"""The predictions of an image model for a split: file format, error and confidence intervals.

RUN/decode/SUBSET.last.images has one line per image: its class, the predicted class and the NLL.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import read_rows, write_text

LEVEL = 0.95


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
        return Answer(
            int(label),
            int(given),
            float(nll),
        )

    return read_rows(path, one, "class, predicted class and NLL")


def error(answers: Sequence[Answer]) -> float:
    """Return the error rate in percent."""
    return 100 * sum(one.is_wrong for one in answers) / len(answers)


def nll(answers: Sequence[Answer]) -> float:
    """Return the mean NLL."""
    return statistics.fmean(one.nll for one in answers)


def interval(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return the 95% confidence interval (Wilson) of the error over images, in percent."""
    from scipy.stats import binomtest

    between = binomtest(sum(one.is_wrong for one in answers), len(answers)).proportion_ci(LEVEL, method="wilson")
    return 100 * between.low, 100 * between.high


def over_runs(errors: Sequence[float]) -> str:
    """Return the mean, standard deviation and median of the runs, and the 95% interval of the mean, on one line.

    The interval is based on Student's t.
    """
    from scipy.stats import t

    mean, middle = statistics.fmean(errors), statistics.median(errors)
    if len(errors) < 2:
        return f"{mean:.2f}%"
    sd = statistics.stdev(errors)
    half = float(t.ppf((1 + LEVEL) / 2, len(errors) - 1)) * sd / math.sqrt(len(errors))
    return f"mean {mean:.2f} ± {sd:.2f}%, 95% interval {mean - half:.2f} to {mean + half:.2f}, median {middle:.2f}%"


@dataclass(frozen=True)
class Paired:
    """Two models compared on the same images.

    difference: between their errors, in percent; p: from the exact McNemar test
    """

    difference: float
    low: float
    high: float
    p: float


def paired(mine: Sequence[Answer], baseline: Sequence[Answer]) -> Paired:
    """Return the difference between the errors of two models, with its 95% interval over images (Wald, paired)."""
    from scipy.stats import binomtest, norm

    worse = sum(one.is_wrong and not other.is_wrong for one, other in zip(mine, baseline, strict=True))
    better = sum(other.is_wrong and not one.is_wrong for one, other in zip(mine, baseline, strict=True))
    size, apart = len(mine), worse - better
    half = float(norm.ppf((1 + LEVEL) / 2)) * math.sqrt(max(worse + better - apart**2 / size, 0.0)) / size
    p = float(binomtest(worse, worse + better).pvalue) if worse + better else 1.0
    return Paired(100 * apart / size, 100 * (apart / size - half), 100 * (apart / size + half), p)
