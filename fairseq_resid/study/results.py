"""The figures of a study, from what is kept of its runs."""

from __future__ import annotations

import statistics as plain
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np

from ..folders.run import Run
from . import plan
from .kept import MODELS, Note
from .plan import Choice, Planned, Study
from .statistics import Effect, Scores, effect, holm

# Of a difference, and of a difference of differences.
SIGNS = (1.0, -1.0, -1.0, 1.0)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, and its standard deviation; None with a single seed."""

    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        return cls(plain.fmean(values), plain.stdev(values) if len(values) > 1 else None)

    def text(self, digits: int) -> str:
        """Return both as text."""
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")


@dataclass(frozen=True)
class Row:
    """An arm in a setting at one value of the tuned flag.

    at: "own", "baseline", or "" without tuning; diverged: seeds whose training did; means: by model and measure
    against: the baseline at its own best in the same setting, on the seeds that both have, so many as `compared` says
    lost: seeds of this arm or the baseline that diverged: what is left is no fair sample, and there is no p
    holm: p over the arms
    """

    setting: str
    arm: str
    at: str
    value: float | None
    seeds: list[int]
    diverged: list[int]
    planned: int
    parameters: int | None
    means: dict[str, dict[str, Mean]]
    against: dict[str, Effect] = field(default_factory=dict)
    compared: int = 0
    lost: int = 0
    holm: float | None = None


@dataclass(frozen=True)
class Interaction:
    """How much more an arm gains on the baseline in one setting than in another; at: as of a row."""

    arm: str
    at: str
    setting: str
    than: str
    seeds: int
    effect: Effect


@dataclass(frozen=True)
class Contrast:
    """The difference of two groups of runs, or of two differences, on all their seeds; effects: by measure.

    groups: as the study file names them; seeds: how many of each; without those of a group there is no effect
    """

    groups: list[str]
    seeds: list[int]
    effects: dict[str, Effect]


@dataclass(frozen=True)
class Tuned:
    """What tuning found of an arm in a setting: (value, valid NLL; None if it diverged) of each run."""

    setting: str
    arm: str
    tried: list[tuple[float, float | None]]
    best: float | None


@dataclass(frozen=True)
class Results:
    """All figures of a study, and the runs that are missing."""

    title: str
    measure: str
    baseline: str
    tests: list[str]
    sentences: int
    signatures: dict[str, str]
    rows: list[Row]
    interactions: list[Interaction]
    contrasts: list[Contrast]
    tuned: list[Tuned]
    missing: list[str]
    unnamed: int


class Kept:
    """The kept runs of a study, and what their scores are made of."""

    def __init__(self, study: Study, notes: Mapping[str, Note], folder: Path) -> None:
        self.study, self.notes, self.folder = study, notes, folder
        self.parts = cache(self._parts)

    def note(self, run: Planned) -> Note | None:
        return self.notes.get(run.name)

    def _parts(self, name: str, measure: str) -> np.ndarray:
        """Return what a run's measure adds up, (sentences, k), over all test sets."""
        run, of = Run(self.folder / name), self.study.kind.measures[measure]
        return np.array([row for subset in self.study.tests_of(measure) for row in of.parts(run, subset)])

    def scores(self, runs: Sequence[Planned], measure: str) -> Scores:
        """Return the scores of the finished runs of an arm."""
        found = [self.parts(run.name, measure) for run in runs]
        if strange := [run.name for run, one in zip(runs, found, strict=True) if one.shape != found[0].shape]:
            raise ValueError(
                f"{self.folder / strange[0]}: was scored on another number of sentences than {runs[0].name}"
            )
        return Scores(np.stack(found), self.study.kind.measures[measure].score)


def build(study: Study, notes: Mapping[str, Note], folder: Path) -> Results:
    """Return the figures of what is kept.

    Raises: ValueError naming the file that is damaged.
    """
    kept = Kept(study, notes, folder)
    nll = {note.run: note.nll for note in notes.values()}
    known = plan.choices(study, nll)
    cells = _cells(study, known)
    rows = [row for cell in cells if (row := _row(kept, cell, known)) is not None]
    rows = _corrected(rows, study)
    first = next((note for note in notes.values() if note.scores), None)
    some = next((row for row in rows if row.seeds), None)
    return Results(
        title=study.title,
        measure=study.measure,
        baseline=study.baseline,
        tests=list(study.tests_of(study.measure)),
        sentences=0 if some is None else len(kept.parts(_runs(kept, some)[0].name, study.measure)),
        signatures={name: score.signature for name, score in first.scores[study.kind.model].items()} if first else {},
        rows=rows,
        interactions=_interactions(kept, rows),
        contrasts=[_contrast(kept, contrast, known) for contrast in study.contrasts],
        tuned=[
            Tuned(
                setting,
                arm,
                [(value, found if np.isfinite(found) else None) for value, found in choice.tried.items()],
                choice.best,
            )
            for (setting, arm), choice in known.items()
            if choice.tried
        ],
        missing=[run.name for run in plan.runs(study, nll) if run.name not in notes],
        unnamed=plan.unnamed(study, nll),
    )


@dataclass(frozen=True)
class Cell:
    """An arm in a setting at one value, and the seeds that are planned of it."""

    setting: str
    arm: str
    at: str
    value: float | None
    seeds: tuple[int, ...]


def _cells(study: Study, known: Mapping[tuple[str, str], Choice]) -> list[Cell]:
    """Return what is compared: by setting, and in each the arms at their own value, then at the baseline's."""
    planned: dict[tuple[str, str, str], int] = {}
    for step in study.plan:
        for arm in step.arms if step.seeds else ():
            at = step.label if study.tuning else ""
            own, base = (known.get((step.setting, name)) for name in (arm, study.baseline))
            if at == "baseline" and own is not None and base is not None and own.best == base.best:
                at = "own"  # these are the runs at its own value
            key = (step.setting, at, arm)
            planned[key] = max(planned.get(key, 0), step.seeds)
    cells = []
    for setting in study.settings:
        for at in values_chosen(study):
            for arm in study.arms:
                if (setting, at, arm) not in planned:
                    continue
                value = fixed_value(at)
                if at in ("own", "baseline"):
                    value = known[setting, arm if at == "own" else study.baseline].best
                    if value is None:
                        continue  # not known yet
                cells.append(Cell(setting, arm, at, value, tuple(range(1, planned[setting, at, arm] + 1))))
    return cells


def values_chosen(study: Study) -> list[str]:
    """Return how the tuned flag's values are chosen, in order: own, baseline, the fixed ones, "" without tuning."""
    fixed = sorted({step.fixed for step in study.plan if step.fixed is not None})
    return ["own", "baseline", *(f"{value:g}" for value in fixed), ""]


def fixed_value(at: str) -> float | None:
    """Return the value that a plan fixes; None if tuning chooses it, or nothing is tuned."""
    return None if at in ("own", "baseline", "") else float(at)


def _base_value(study: Study, setting: str, at: str, known: Mapping[tuple[str, str], Choice]) -> float | None:
    """Return the value of the baseline that a row is compared with."""
    return known[setting, study.baseline].best if at in ("own", "baseline") else fixed_value(at)


def _planned(cell: Cell | Row, seed: int) -> Planned:
    return Planned(cell.setting, cell.arm, cell.value, seed)


def _runs(kept: Kept, row: Row) -> list[Planned]:
    return [_planned(row, seed) for seed in row.seeds]


def _row(kept: Kept, cell: Cell, known: Mapping[tuple[str, str], Choice]) -> Row | None:
    """Return the figures of a cell; None if no run of it has ended."""
    study = kept.study
    ended = {seed: note for seed in cell.seeds if (note := kept.note(_planned(cell, seed))) is not None}
    finished = {seed: note for seed, note in ended.items() if note.outcome == "finished"}
    if not ended:
        return None
    names = dict.fromkeys(name for note in finished.values() for name in note.scores[study.kind.model])
    means = {
        model: {name: Mean.of([note.scores[model][name].score for note in finished.values()]) for name in names}
        for model in MODELS
        if finished and all(model in note.scores for note in finished.values())
    }
    parameters = next((note.parameters for note in finished.values()), None)
    row = Row(
        cell.setting,
        cell.arm,
        cell.at,
        cell.value,
        sorted(finished),
        sorted(set(ended) - set(finished)),
        len(cell.seeds),
        parameters,
        means,
    )
    base = _base_value(study, cell.setting, cell.at, known)
    if cell.arm == study.baseline or (cell.at and base is None):
        return row
    others = {seed: kept.note(Planned(cell.setting, study.baseline, base, seed)) for seed in cell.seeds}
    common = [seed for seed in row.seeds if (note := others[seed]) is not None and note.outcome == "finished"]
    if not common:
        return row
    lost = len(row.diverged) + sum(note is not None and note.outcome == "diverged" for note in others.values())
    mine = [_planned(row, seed) for seed in common]
    theirs = [Planned(cell.setting, study.baseline, base, seed) for seed in common]
    against = {
        measure: effect([(1.0, kept.scores(mine, measure)), (-1.0, kept.scores(theirs, measure))])
        for measure in study.kind.measures
    }
    if lost:
        against = {measure: replace(found, p=None) for measure, found in against.items()}
    return replace(row, against=against, compared=len(common), lost=lost)


def baselines(study: Study, rows: Sequence[Row], at: str | None = None) -> dict[str, Row]:
    """Return by setting the row of the baseline that rows at a value are compared with; without `at`, any."""
    label = "own" if at == "baseline" else at
    mine = [row for row in rows if row.arm == study.baseline and row.at != "baseline"]
    return {row.setting: row for row in mine if label in (None, row.at)}


def compared_at(study: Study, rows: Sequence[Row], at: str) -> list[Row]:
    """Return the rows that are compared with the baseline at their own value, or at the baseline's.

    Where both values are the same, the row at its own value is the row at the baseline's too.
    """
    base = baselines(study, rows, "own")

    def is_at(row: Row) -> bool:
        own = base.get(row.setting)
        return row.at == at or (own is not None and (row.at, at, row.value) == ("own", "baseline", own.value))

    return [row for row in rows if row.against and is_at(row)]


def across(study: Study, rows: Sequence[Row], arm: str, at: str) -> dict[str, Row]:
    """Return by setting the row of an arm that is compared at its own value, or at the baseline's."""
    return {row.setting: row for row in compared_at(study, rows, at) if row.arm == arm}


def _corrected(rows: Sequence[Row], study: Study) -> list[Row]:
    """Return the rows with p of the measure corrected, over the arms that are compared in one setting at one value."""
    made = list(rows)
    for setting, at in dict.fromkeys((row.setting, row.at) for row in rows):
        family = [row for row in compared_at(study, rows, at) if row.setting == setting]
        for row, p in zip(family, holm([row.against[study.measure].p for row in family]), strict=True):
            if row.at == at:
                made[rows.index(row)] = replace(row, holm=p)
    return made


def _interactions(kept: Kept, rows: Sequence[Row]) -> list[Interaction]:
    """Return for every arm how its effect differs between the settings, each against every one before it."""
    study, found = kept.study, []
    for arm, at in product(study.arms, values_chosen(study)):
        base = baselines(study, rows, at)
        mine = across(study, rows, arm, at)
        for than, setting in combinations(mine, 2):
            if at not in {mine[setting].at, mine[than].at}:
                continue  # it is the one at its own value
            both = [mine[setting], base[setting], mine[than], base[than]]
            common = sorted(set.intersection(*(set(row.seeds) for row in both)))
            if not common:
                continue
            scores = [kept.scores([_planned(row, seed) for seed in common], study.measure) for row in both]
            combined = effect(list(zip(SIGNS, scores, strict=True)))
            if any(row.diverged for row in both):
                combined = replace(combined, p=None)
            found.append(Interaction(arm, at, setting, than, len(common), combined))
    return found


def _contrast(kept: Kept, groups: Sequence[str], known: Mapping[tuple[str, str], Choice]) -> Contrast:
    """Return what all seeds of these groups say of their difference, or of that of the first two and the last two."""
    study, runs, has_diverged = kept.study, [], False
    for text in groups:
        group = plan.group(study, text)
        own = known.get((group.setting, group.arm))
        value = own.best if group.value is None and own is not None else group.value
        ended = [
            note
            for note in kept.notes.values()
            if (note.run.setting, note.run.arm, note.run.value) == (group.setting, group.arm, value)
            and not note.run.is_tuning
        ]
        finished = [note.run for note in ended if note.outcome == "finished"]
        has_diverged |= len(finished) < len(ended)
        runs.append(sorted(finished, key=lambda run: run.seed))
    effects = {}
    if all(runs):
        for measure in study.kind.measures:
            found = effect([(sign, kept.scores(some, measure)) for sign, some in zip(SIGNS, runs, strict=False)])
            effects[measure] = replace(found, p=None) if has_diverged else found
    return Contrast(list(groups), [len(some) for some in runs], effects)
