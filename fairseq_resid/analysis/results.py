"""RUN/analysis/analysis.json: what analysis found in one model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from .. import records
from ..foreign import printable
from ..runs.run import FileState
from ..tasks import kinds
from ..tasks.protocol import FREQUENCIES, POSITIONS, article

FORMAT = 1  # of analysis.json; a later version raises it if it writes what this one would misread
MOST = 1e38  # of any figure: fp32 ends there, and plots square what they draw
MOST_SITES, MOST_STACKS, MOST_LAYERS, MOST_UPDATES = 100_000, 32, 10_000, 10**12
BINS = 50  # of a histogram, over [0, 1]


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of a site, over all positions that are no padding, and all channels if it has one for each.

    start: its mean in the model as it was initialised, on the same text
    histogram: how often it lies in each of BINS equal parts of [0, 1]; outside of it: below, above; empty for a
               coefficient that is the same everywhere
    by_position, by_frequency: its mean by place in the sentence, and by class of the token there; None: no token
    """

    mean: float
    sd: float
    start: float | None = None
    histogram: list[int] = field(default_factory=list)
    below: int = 0
    above: int = 0
    by_position: list[float | None] = field(default_factory=list)
    by_frequency: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class Site:
    """One sublayer site.

    shortcut, branch, output: mean Euclidean norm over positions; of a state of several streams or values, that of what
                              the stack's end would read off it
    share: of the branch in the output: mean of |y - y without F| / |y|
    nll_without: of the whole model with this site's F set to 0, nats per target token
    gradient: |d(summed NLL of a sentence)/dy|, mean over sentences; start_gradient: of the initial model
    """

    stack: str
    layer: int
    kind: str
    shortcut: float
    branch: float
    output: float
    share: float
    nll_without: float | None = None
    gradient: float | None = None
    start_gradient: float | None = None
    coefficients: dict[str, Coefficient] = field(default_factory=dict)


@dataclass(frozen=True)
class Analysis:
    """One model, on one text.

    example: "sentence" or "image": what `sentences` counts; nll: nats per target token with EOS, unsmoothed,
    teacher-forced; of images, per image; `tokens` counts those; is_training_data: the model was trained on them
    checkpoint: the file's name, made_from: the file
    learning: of the coefficients that are the same everywhere, by site and name: updates and mean of each checkpoint
    format: FORMAT of the version that wrote it
    """

    run: str
    checkpoint: str
    updates: int | None
    structure: str
    options: dict[str, str | int | float]
    data: str
    subset: str
    sentences: int
    is_whole: bool  # all sentences of the subset that the model can read
    tokens: int
    nll: float
    start_nll: float | None
    sites: dict[str, Site]
    made_from: FileState
    learning: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    example: str = "sentence"
    is_training_data: bool = False
    format: int = FORMAT

    @property
    def amount(self) -> str:
        """What was read, in words."""
        unit = article(kinds.of_example(self.example).prediction)
        trained = ", which it was trained on" if self.is_training_data else ""
        return f"nats {unit} on {self.sentences:,} {self.example}s of {self.subset}{trained}"

    def is_of(self, made_from: FileState, subset: str, sentences: int, ablated: bool) -> bool:
        """Return whether this is the analysis of that file, with these settings."""
        was_ablated = all(site.nll_without is not None for site in self.sites.values())
        asked = self.sentences == sentences or (self.sentences < sentences and self.is_whole)
        return self.made_from == made_from and self.subset == subset and asked and was_ablated == ablated

    def off(self) -> list[str]:
        """Return the sites whose branch is switched off: the model, or if that was not tried their output, is the same
        without it."""
        return [
            name
            for name, site in self.sites.items()
            if (site.share < OFF if site.nll_without is None else site.nll_without - self.nll < NOTHING)
        ]


OFF = 0.02  # of the output
NOTHING = 0.005  # nats a token


@dataclass(frozen=True)
class Header:
    """What is read of an analysis before anything else."""

    format: int = FORMAT


def read_analysis(path: Path, writer: str = "fairseq-resid analyze") -> Analysis:
    """Read an analysis and check its figures: whoever has one can draw it.

    Raises: what records.read raises; ValueError naming the file and the figure that cannot be, or if a later version
    wrote the file.
    """
    known = records.read(path, Header, writer).format
    if known > FORMAT:
        raise ValueError(
            f"{path}: format {known}: written by a later version of fairseq_resid; this one reads {FORMAT}"
        )
    analysis = records.read(path, Analysis, writer)
    if wrong := next(faults(analysis), None):
        raise ValueError(f"{path}: damaged, or not written by {writer}: {printable(wrong)}")
    return analysis


def faults(analysis: Analysis) -> Iterator[str]:
    """Yield what cannot be in an analysis, a line each: the field, what it is, what is allowed."""
    count = len(analysis.sites)
    if not 1 <= count <= MOST_SITES:
        yield f"sites: {count}: must be 1 to {MOST_SITES}"
    stacks = len({site.stack for site in analysis.sites.values()})
    if stacks > MOST_STACKS:
        yield f"sites: of {stacks} stacks: must be {MOST_STACKS} or less"
    for name in ("nll", "start_nll"):
        yield from beyond(name, getattr(analysis, name))
    for name in ("sentences", "tokens", "updates"):
        value = getattr(analysis, name)
        if value is not None and not 0 <= value <= MOST_UPDATES**2:
            yield f"{name}: {value}: must be 0 to {MOST_UPDATES**2}"
    for where, site in analysis.sites.items():
        if not 0 <= site.layer < MOST_LAYERS:
            yield f"sites: {where}: layer: {site.layer}: must be 0 to {MOST_LAYERS - 1}"
        for each in fields(site):
            value = getattr(site, each.name)
            if isinstance(value, float):
                yield from beyond(f"sites: {where}: {each.name}", value)
        for name, coefficient in site.coefficients.items():
            yield from faults_of(f"sites: {where}: {name}", coefficient)
    for where, rows in analysis.learning.items():
        if where not in analysis.sites:
            yield f"learning: {where}: no such site"
        for name, row in rows.items():
            for updates, value in row:
                if not 0 <= updates <= MOST_UPDATES:
                    yield f"learning: {where}: {name}: {updates} updates: must be 0 to {MOST_UPDATES}"
                yield from beyond(f"learning: {where}: {name}", value)


def faults_of(where: str, coefficient: Coefficient) -> Iterator[str]:
    """Yield what cannot be in a coefficient."""
    for name in ("mean", "sd", "start"):
        yield from beyond(f"{where}: {name}", getattr(coefficient, name))
    if len(coefficient.histogram) not in (0, BINS):
        yield f"{where}: histogram: {len(coefficient.histogram)} parts: must be {BINS}, or none"
    if any(not 0 <= number <= MOST_UPDATES**2 for number in coefficient.histogram):
        yield f"{where}: histogram: must be counts"
    for name, most in (("by_position", POSITIONS), ("by_frequency", FREQUENCIES)):
        values = getattr(coefficient, name)
        if len(values) > most:
            yield f"{where}: {name}: {len(values)} means: must be {most} or less"
        for value in values:
            yield from beyond(f"{where}: {name}", value)


def beyond(where: str, value: float | None) -> Iterator[str]:
    """Yield what is wrong with a figure that is no finite number that can be drawn."""
    if value is not None and not (math.isfinite(value) and abs(value) <= MOST):
        yield f"{where}: {value:g}: must be a number from {-MOST:g} to {MOST:g}"
