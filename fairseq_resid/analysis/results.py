"""RUN/analysis/analysis.json: the results of analysing one model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from .. import records
from ..foreign import printable
from ..runs.run import FileState
from ..tasks import kinds
from ..tasks.protocol import FREQUENCIES, POSITIONS

FORMAT = 1  # format version of analysis.json; incremented when older versions of this package would misread the file
MOST = 1e38  # maximum absolute value of a number, about the range of fp32
MOST_SITES, MOST_STACKS, MOST_LAYERS, MOST_UPDATES = 100_000, 32, 10_000, 10**12
BINS = 50  # bins of a histogram over [0, 1]


@dataclass(frozen=True)
class Coefficient:
    """Statistics of a coefficient at one site, over non-padding positions and, if it varies by channel, over channels.

    start: its mean in the initial model, on the same examples
    histogram: counts in BINS equal parts of [0, 1]; below, above: counts outside; empty for a position-independent
               coefficient
    by_position, by_frequency: its mean by position in the sentence and by token frequency class; None: no such token
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
    """The measurements at one sublayer site.

    shortcut, branch, output: mean Euclidean norm over positions; a state of several streams or values is first reduced
                              as at the end of the stack
    share: the branch's share of the output: mean of |y - y without F| / |y|
    nll_without: NLL of the whole model with this site's F set to 0, in the unit of Analysis.nll
    gradient: |d(summed NLL of an example)/dy|, mean over examples; start_gradient: the same for the initial model
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
    """The analysis of one model on one subset of the data.

    example: "sentence", "image" or "captioned image", the unit of `sentences`
    is_training_data: whether the model was trained on this subset
    is_own_data: whether `data` is the folder of the model's training, not one given by --data
    nll: nats per target token including EOS, unsmoothed and teacher-forced, or per image
    tokens: number of tokens or images
    checkpoint: the name of the checkpoint file; made_from: its fingerprint
    learning: position-independent coefficients, by site and name: (updates, mean) of each checkpoint
    format: FORMAT of the version that wrote the file
    """

    run: str
    checkpoint: str
    updates: int | None
    structure: str
    options: dict[str, str | int | float]
    data: str
    subset: str
    sentences: int
    is_whole: bool  # whether all examples of the subset that fit the model were used
    tokens: int
    nll: float
    start_nll: float | None
    sites: dict[str, Site]
    made_from: FileState
    learning: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    example: str = "sentence"
    is_training_data: bool = False
    is_own_data: bool = True
    format: int = FORMAT

    @property
    def amount(self) -> str:
        """The unit of the NLL and the examples it was measured on, in words."""
        unit = kinds.of_example(self.example).prediction
        trained = " (training data)" if self.is_training_data else ""
        return f"nats per {unit} on {self.sentences:,} {self.example}s of {self.subset}{trained}"

    def is_of(self, checkpoint: Path, data: Path | None, subset: str, sentences: int, ablated: bool) -> bool:
        """Return whether this is the analysis of the given checkpoint with the given settings; data: that of --data."""
        was_ablated = all(site.nll_without is not None for site in self.sites.values())
        asked = self.sentences == sentences or (self.sentences < sentences and self.is_whole)
        is_same_data = self.is_own_data if data is None else os.path.abspath(self.data) == os.path.abspath(data)
        is_on = is_same_data and self.subset == subset
        return self.made_from.renewed(checkpoint) is not None and is_on and asked and was_ablated == ablated

    def off(self) -> list[str]:
        """Return the sites whose branch is switched off: removing it increases the NLL by less than NOTHING, or,
        without ablation, its share of the output is below OFF.
        """
        return [
            name
            for name, site in self.sites.items()
            if (site.share < OFF if site.nll_without is None else site.nll_without - self.nll < NOTHING)
        ]


OFF = 0.02  # share of the output
NOTHING = 0.005  # nats per token or image


@dataclass(frozen=True)
class Header:
    """The part of analysis.json that is read first."""

    format: int = FORMAT


def read_analysis(path: Path, writer: str = "fairseq-resid analyze") -> Analysis:
    """Read an analysis and check its values, so that it can be drawn.

    Raises: the errors of records.read; ValueError naming the file if a value is out of range, or if a later version
    wrote the file.
    """
    known = records.read(path, Header, writer).format
    if known > FORMAT:
        raise ValueError(
            f"{path}: format {known}: written by a later version of fairseq_resid; this version reads format {FORMAT}"
        )
    analysis = records.read(path, Analysis, writer)
    if wrong := next(faults(analysis), None):
        raise ValueError(f"{path}: damaged, or not written by {writer}: {printable(wrong)}")
    return analysis


def faults(analysis: Analysis) -> Iterator[str]:
    """Yield one line per invalid value in an analysis: the field, its value, and the allowed values."""
    count = len(analysis.sites)
    if not 1 <= count <= MOST_SITES:
        yield f"sites: {count}: must be 1 to {MOST_SITES}"
    stacks = len({site.stack for site in analysis.sites.values()})
    if stacks > MOST_STACKS:
        yield f"sites: {stacks} stacks: must be {MOST_STACKS} or fewer"
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
    """Yield one line per invalid value in a coefficient."""
    for name in ("mean", "sd", "start"):
        yield from beyond(f"{where}: {name}", getattr(coefficient, name))
    if len(coefficient.histogram) not in (0, BINS):
        yield f"{where}: histogram: {len(coefficient.histogram)} bins: must be {BINS}, or none"
    if any(not 0 <= number <= MOST_UPDATES**2 for number in coefficient.histogram):
        yield f"{where}: histogram: must contain counts from 0 to {MOST_UPDATES**2}"
    for name, most in (("by_position", POSITIONS), ("by_frequency", FREQUENCIES)):
        values = getattr(coefficient, name)
        if len(values) > most:
            yield f"{where}: {name}: {len(values)} means: must be {most} or fewer"
        for value in values:
            yield from beyond(f"{where}: {name}", value)


def beyond(where: str, value: float | None) -> Iterator[str]:
    """Yield a line if a value is infinite, NaN or too large to draw."""
    if value is not None and not (math.isfinite(value) and abs(value) <= MOST):
        yield f"{where}: {value:g}: must be a number from {-MOST:g} to {MOST:g}"
