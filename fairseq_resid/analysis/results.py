"""RUN/analysis/analysis.json: what analysis found in one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..folders.run import Fingerprint

BINS = 50  # of a histogram, over [0, 1]
POSITIONS = 64  # that have a figure of their own; later ones count as the last
FREQUENCIES = 8  # classes of tokens by their rank in dict.txt: the 1st to 10th, 11th to 30th, 31st to 100th, ...


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
    made_from: Fingerprint
    learning: dict[str, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    example: str = "sentence"
    is_training_data: bool = False

    @property
    def amount(self) -> str:
        """What was read, in words."""
        unit = "an image" if self.example == "image" else "a token"
        trained = ", which it was trained on" if self.is_training_data else ""
        return f"nats {unit} on {self.sentences:,} {self.example}s of {self.subset}{trained}"

    def is_of(self, made_from: Fingerprint, subset: str, sentences: int, ablated: bool) -> bool:
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
