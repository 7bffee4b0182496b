"""RUN/analysis/analysis.json: the results of analysing one model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from .. import records
from ..runs.made_from import FileState
from ..scoring import kinds

FORMAT = 1  # format version of analysis.json; incremented when older versions of this package would misread the file
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
        unit = kinds.of_example(self.example).words.prediction
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


def read_analysis(path: Path, writer: str = "fairseq-resid analyze") -> Analysis:
    """Read an analysis.

    Raises: the errors of records.read; ValueError naming the file if a later version wrote it.
    """
    known = records.read(path, Analysis, writer)
    if known.format > FORMAT:
        raise ValueError(f"{path}: format {known.format}: this version reads format {FORMAT}")
    return known
