"""The results of a study, computed from its kept runs."""

from __future__ import annotations

import statistics as plain
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np

from .. import records
from ..analysis import curves
from ..runs.run import Run, RunRecord, Scored
from ..runs.training_log import Explosion
from ..scoring.task import NLL
from . import archive, plan
from .kept import Note, load_notes
from .plan import Choice, Group, Study
from .statistics import Effect, effect, holm, pseudo_values

# Signs of a difference, and of a difference of differences.
SIGNS = (1.0, -1.0, -1.0, 1.0)
QUARTERS = 4


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation (None for a single seed) over seeds. count: number of seeds."""

    mean: float
    sd: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        return cls(plain.fmean(values), plain.stdev(values) if len(values) > 1 else None, len(values))

    def text(self, digits: int) -> str:
        """Format a mean and its standard deviation."""
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")


@dataclass(frozen=True)
class Comparison:
    """The difference between two groups of runs, or between two such differences, over all finished seeds.

    seeds: number of finished seeds in each group; effects: by measure, empty unless every group has a finished run
    untested: reason for omitting intervals and p: a group has no finished run, a run diverged, so that the remaining
        seeds are a biased sample, or a run did not train; otherwise ""
    """

    seeds: list[int]
    effects: dict[str, Effect]
    untested: str = ""


@dataclass(frozen=True)
class Row:
    """An arm in a setting at one value of the tuned flag.

    at: "own", "baseline", a value that the plan fixes, or "" without tuning
    seeds: finished seeds; diverged: seeds whose training diverged
    parameters: number of parameters in the model; hours: training and evaluation of a run; means: by model and measure
    by_seed: the measure for each seed; curve: (epoch, validation), the mean over seeds
    against: comparison with the baseline in the same setting, at its own best or the same fixed value
    gap: the curve minus the baseline's
    quarters: comparisons on each quarter of the examples, easiest first (see `KeptRuns.quarter`), of the NLL and the
        study's measure
    holm: Holm-corrected p, over the `family` arms that are compared in the same setting at the same value
    """

    setting: str
    arm: str
    at: str
    value: float | None
    seeds: list[int]
    diverged: list[int]
    planned: int
    parameters: int | None
    hours: float | None
    means: dict[str, dict[str, Mean]]
    by_seed: list[float] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    against: Comparison | None = None
    gap: list[tuple[int, float]] = field(default_factory=list)
    quarters: list[Comparison] = field(default_factory=list)
    holm: float | None = None
    family: int = 0


@dataclass(frozen=True)
class Interaction:
    """How much more an arm gains over the baseline in one setting than in another; at: as in `Row`."""

    arm: str
    at: str
    setting: str
    than: str
    comparison: Comparison


@dataclass(frozen=True)
class Contrast:
    """A comparison of groups that the study names; groups: as written in its file."""

    groups: list[str]
    comparison: Comparison


@dataclass(frozen=True)
class Tuned:
    """The tuning runs of an arm in a setting: (value, validation NLL), with None if the run diverged."""

    setting: str
    arm: str
    tried: list[tuple[float, float | None]]
    best: float | None


@dataclass(frozen=True)
class StudyResults:
    """All results of a study.

    tests, sentences: by measure; machines: number of runs by machine
    missing: unfinished runs; unnamed: number of runs that tuning has not determined yet
    without_data: runs without a data fingerprint
    exploded: runs whose gradient exploded, except tuning runs
        (both with the runs of other studies that appear in the contrasts, as STUDY/RUN)
    archive: the SHA-256 of the archive that contains the runs, if they are packed
    """

    title: str
    measure: str
    baseline: str
    tests: dict[str, list[str]]
    sentences: dict[str, int]
    signatures: dict[str, str]
    rows: list[Row]
    interactions: list[Interaction]
    contrasts: list[Contrast]
    tuned: list[Tuned]
    machines: dict[str, int]
    missing: list[str]
    unnamed: int
    without_data: list[str]
    exploded: dict[str, Explosion] = field(default_factory=dict)
    archive: str | None = None


@dataclass(frozen=True)
class Ended:
    """A finished or diverged run: its note and its folder."""

    note: Note
    folder: Path


class KeptRuns:
    """The kept runs of a study and their scores by sentence.

    others: the studies whose runs appear in the contrasts, by name
    """

    def __init__(
        self, study: Study, notes: Mapping[str, Note], folder: Path, others: Mapping[str, KeptRuns] | None = None
    ) -> None:
        self.study, self.notes, self.folder, self.others = study, notes, folder, others or {}
        self.nll = {note.run: note.nll for note in notes.values()}
        self.known = plan.choices(study, self.nll)
        self.parts, self.values = cache(self._parts), cache(self._values)

    def ended(self, group: Group | Cell | Row) -> list[Ended]:
        """Return all seeds of an arm, excluding its tuning runs."""
        wanted = (group.setting, group.arm, group.value)
        found = [
            note
            for note in self.notes.values()
            if (note.run.setting, note.run.arm, note.run.value) == wanted and not note.run.is_tuning
        ]
        return [Ended(note, self.folder / note.run.name) for note in sorted(found, key=lambda note: note.run.seed)]

    def group(self, text: str) -> list[Ended]:
        """Return the runs of a group of a contrast, from this or another study."""
        name, rest = plan.study_and_group(text)
        kept = self.others[name] if name else self
        group = plan.group(kept.study, rest)
        own = kept.known.get((group.setting, group.arm))
        if group.value is None and own is not None:
            group = replace(group, value=own.best)
        return kept.ended(group)

    def borrowed(self) -> dict[str, Ended]:
        """Return the runs of other studies that appear in the contrasts, by STUDY/RUN."""
        texts = dict.fromkeys(text for groups in self.study.contrasts for text in groups if "/" in text)
        return {
            f"{plan.study_and_group(text)[0]}/{run.note.run.name}": run for text in texts for run in self.group(text)
        }

    def _parts(self, folder: Path, measure: str, tests: tuple[str, ...]) -> np.ndarray:
        """Return the parts of a measure for every sentence of the test sets, for one run."""
        run, of = Run(folder), self.study.task.studied.measures[measure]
        return np.array([row for subset in tests for row in of.parts(run, subset)])

    def _values(self, folder: Path, measure: str) -> np.ndarray:
        """Return the pseudo-values of a measure for every sentence of all its test sets, for one run."""
        return pseudo_values(
            self.parts(folder, measure, self.study.tests_of(measure)), self.study.task.studied.measures[measure].score
        )

    def quarter(self, groups: Sequence[Sequence[Ended]], measure: str, number: int) -> list[np.ndarray]:
        """Return the pseudo-values of a measure for each group, on one quarter of the test sets of the study's measure.

        0 is the quarter with the easiest sentences. The difficulty of a sentence is its NLL per token, averaged over
        the runs of each group and then over the groups, so that none of them is favoured. With fewer sentences than
        quarters, the list can be empty.
        Raises: ValueError naming the run whose NLL has another number of sentences than the measure.
        """
        tests, of = self.study.tests_of(self.study.measure), self.study.task.studied.measures[measure]
        means, parts = [], []
        for group in groups:
            nll = [self.parts(run.folder, NLL, tests) for run in group]
            means.append(np.mean([part[:, 0] / part[:, 1] for part in nll], axis=0))
            parts.append([self.parts(run.folder, measure, tests) for run in group])
            for run, its, part in zip(group, nll, parts[-1], strict=True):
                if len(its) != len(part):
                    examples = self.study.task.words.examples
                    raise ValueError(f"{run.folder}: NLL of {len(its)} {examples}, but {measure} of {len(part)}")
        chosen = np.array_split(np.argsort(np.mean(means, axis=0), kind="stable"), QUARTERS)[number]
        if not chosen.size:
            return []
        return [np.stack([pseudo_values(part[chosen], of.score) for part in group]) for group in parts]

    def compare(
        self, groups: Sequence[Sequence[Ended]], measures: Iterable[str], quarter: int | None = None
    ) -> Comparison:
        """Compare two groups of finished runs, or two pairs of groups by their differences.

        quarter: compare only on this quarter of the sentences (see `quarter`); without effects if it is empty
        """
        task = self.study.task
        finished = [[run for run in group if run.note.outcome == "finished"] for group in groups]
        seeds = [len(group) for group in finished]
        if not all(finished):
            return Comparison(seeds, {}, "not finished")
        first, *others = [run.folder for group in finished for run in group]
        effects = {}
        for measure in measures:
            count = len(self.values(first, measure))
            if strange := [folder for folder in others if len(self.values(folder, measure)) != count]:
                raise ValueError(
                    f"{strange[0]}: was scored on a different number of {task.words.examples} than {first.name}"
                )
            if quarter is None:
                samples = [np.stack([self.values(run.folder, measure) for run in group]) for group in finished]
            else:
                samples = self.quarter(finished, measure, quarter)
                if not samples:
                    continue
            effects[measure] = effect(list(zip(SIGNS, samples, strict=False)))
        untested = ""
        if lost := sum(map(len, groups)) - sum(seeds):
            untested = f"{lost} diverged"
        elif task.studied.floor is not None:
            name, least = task.studied.floor
            if any(run.note.scores[task.studied.best][name].score < least for group in finished for run in group):
                untested = f"{name} below {least:g}"
        if untested:
            effects = {measure: Effect(found.difference) for measure, found in effects.items()}
        return Comparison(seeds, effects, untested)


def validation(run: Run, quantity: str) -> dict[int, float]:
    """Return the last validation result of every epoch of a training run; quantity: as in `curves`."""
    keys, _, factor = curves.QUANTITIES[quantity]
    found: dict[int, float] = {}
    for record in run.log_records():
        value = next((number for key in keys if (number := curves.number(record.get(key))) is not None), None)
        if value is not None and "epoch" in record:
            found[int(record["epoch"])] = factor * value
    return found


def mean_curve(found: Sequence[Mapping[int, float]]) -> list[tuple[int, float]]:
    """Return the mean of several curves at the epochs that all of them have."""
    common = sorted(set.intersection(*map(set, found))) if found else []
    return [(epoch, plain.fmean(one[epoch] for one in found)) for epoch in common]


def machine(record: RunRecord) -> str:
    hardware = record.sessions[-1].hardware
    if hardware.gpus:
        return f"{len(hardware.gpus)} x {hardware.gpus[0]}"
    return f"{hardware.cores} {'core' if hardware.cores == 1 else 'cores'} of {hardware.cpu}"


def other_studies(study: Study, file: Path, notes: Mapping[str, Note]) -> dict[str, KeptRuns]:
    """Return the kept runs of the studies whose runs appear in the contrasts of a study file, by name.

    Raises: ValueError naming the damaged file, or the study that was scored on other data.
    """
    found = {}
    for name, path in plan.other_files(study, file).items():
        other = plan.read_alone(path)
        folder = archive.runs_folder(archive.kept_folder(path))
        theirs = load_notes(other, path, folder)
        if (mine := digests(notes)) and (its := digests(theirs)) and mine != its:
            raise ValueError(
                f"{folder}: was scored on different data than {file.stem}: its dictionaries or references differ"
            )
        found[name] = KeptRuns(other, theirs, folder)
    return found


def digests(notes: Mapping[str, Note]) -> set[str]:
    """Return the data fingerprints of a study's runs: one, or none if no run has it."""
    return {note.data for note in notes.values() if note.data}


def build_results(
    study: Study, notes: Mapping[str, Note], folder: Path, others: Mapping[str, KeptRuns] | None = None
) -> StudyResults:
    """Compute the results of a study from its kept runs. others: see `other_studies`.

    Raises: ValueError naming the damaged file.
    """
    kept = KeptRuns(study, notes, folder, others)
    nll, known = kept.nll, kept.known
    rows = [row for cell in _cells(study, known) if (row := _row(kept, cell)) is not None]
    rows = _corrected([_against(kept, row, rows) for row in rows], study)
    first = next((note for note in notes.values() if note.scores), None)
    every = {**{name: Ended(note, folder / name) for name, note in notes.items()}, **kept.borrowed()}
    runs = [Run(folder / name) for name in notes]
    sessions = [record for run in runs if (record := records.remembered(run.record, RunRecord)) and record.sessions]
    return StudyResults(
        title=study.title,
        measure=study.measure,
        baseline=study.baseline,
        tests={measure: list(study.tests_of(measure)) for measure in study.task.studied.measures},
        sentences={
            measure: 0 if first is None else len(kept.values(folder / first.run.name, measure))
            for measure in study.task.studied.measures
        },
        signatures={name: score.signature for name, score in first.scores[study.task.studied.best].items()}
        if first
        else {},
        rows=rows,
        interactions=_interactions(kept, rows),
        contrasts=[
            Contrast(list(groups), kept.compare([kept.group(text) for text in groups], study.task.studied.measures))
            for groups in study.contrasts
        ],
        tuned=[
            Tuned(
                setting,
                arm,
                [(value, found if np.isfinite(found) else None) for value, found in choice.tried.items()],
                choice.best,
            )
            for (setting, arm), choice in known.items()
            if choice.tried and study.tuning is not None and study.tuning.tuned_in(setting) == setting
        ],
        machines=dict(Counter(map(machine, sessions)).most_common()),
        missing=[run.name for run in plan.runs(study, nll) if run.name not in notes],
        unnamed=plan.undetermined_runs(study, nll),
        without_data=[name for name, run in every.items() if not run.note.data],
        exploded={
            name: explosion
            for name, run in every.items()
            if not run.note.run.is_tuning and (explosion := Run(run.folder).training_summary().explosion)
        },
    )


@dataclass(frozen=True)
class Cell:
    """An arm in a setting at one value, with its planned seeds."""

    setting: str
    arm: str
    at: str
    value: float | None
    seeds: tuple[int, ...]


def _cells(study: Study, known: Mapping[tuple[str, str], Choice]) -> list[Cell]:
    """Return the compared cells by setting: the arms at their own values, then at the baseline's and at fixed ones."""
    planned: dict[tuple[str, str, str], int] = {}
    for step in study.plan:
        for arm in step.arms if step.seeds else ():
            at = step.label if study.tuning else ""
            own, base = (known.get((step.setting, name)) for name in (arm, study.baseline))
            if at == "baseline" and own is not None and base is not None and own.best == base.best:
                at = "own"  # the runs are those at its own value
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
                        continue  # the value is not known yet
                cells.append(Cell(setting, arm, at, value, tuple(range(1, planned[setting, at, arm] + 1))))
    return cells


def values_chosen(study: Study) -> list[str]:
    """Return the choices of the tuned value in order: own, baseline, fixed values, and "" for no tuning."""
    fixed = sorted({step.fixed for step in study.plan if step.fixed is not None})
    return ["own", "baseline", *(f"{value:g}" for value in fixed), ""]


def fixed_value(at: str) -> float | None:
    """Return the value that a plan fixes; None if tuning chooses it or the study has no tuning."""
    return None if at in ("own", "baseline", "") else float(at)


def _row(kept: KeptRuns, cell: Cell) -> Row | None:
    """Return the results of a cell; None if none of its runs has finished or diverged."""
    task, measure = kept.study.task, kept.study.measure
    ended = kept.ended(cell)
    finished = [run.note for run in ended if run.note.outcome == "finished"]
    if not ended:
        return None
    scored: dict[str, list[dict[str, Scored]]] = {}
    for note in finished:
        for model, scores in note.scores.items():
            scored.setdefault(model, []).append(scores)
    means = {
        model: {name: Mean.of([scores[name].score for scores in found if name in scores]) for name in found[0]}
        for model, found in scored.items()
    }
    hours = [note.seconds / 3600 for note in finished if note.seconds is not None]
    return Row(
        cell.setting,
        cell.arm,
        cell.at,
        cell.value,
        [note.run.seed for note in finished],
        [run.note.run.seed for run in ended if run.note.outcome != "finished"],
        len(cell.seeds),
        next((note.parameters for note in finished), None),
        plain.fmean(hours) if hours else None,
        means,
        by_seed=[note.scores[task.studied.best][measure].score for note in finished],
        curve=mean_curve([validation(Run(kept.folder / note.run.name), task.studied.curve) for note in finished]),
    )


def _against(kept: KeptRuns, row: Row, rows: Sequence[Row]) -> Row:
    """Return the row after adding its comparison with the baseline, over all seeds of both."""
    base = baselines(kept.study, rows, row.at).get(row.setting)
    if base is None or row.arm == kept.study.baseline:
        return row
    groups = [kept.ended(row), kept.ended(base)]
    found = kept.compare(groups, kept.study.task.studied.measures)
    if not found.effects:
        return row
    measures = dict.fromkeys((NLL, kept.study.measure))
    quarters = [kept.compare(groups, measures, number) for number in range(QUARTERS)]
    theirs = dict(base.curve)
    gap = [(epoch, value - theirs[epoch]) for epoch, value in row.curve if epoch in theirs]
    return replace(row, against=found, gap=gap, quarters=quarters)


def baselines(study: Study | StudyResults, rows: Sequence[Row], at: str | None = None) -> dict[str, Row]:
    """Return, for each setting, the baseline's row that rows at `at` are compared with.

    If `at` is None, return any of the baseline's rows, at its own value or at a fixed one.
    """
    label = "own" if at == "baseline" else at
    mine = [row for row in rows if row.arm == study.baseline and row.at != "baseline"]
    return {row.setting: row for row in mine if label in (None, row.at)}


def compared_at(study: Study, rows: Sequence[Row], at: str) -> list[Row]:
    """Return the rows that are compared with the baseline at one choice of the tuned value (see `values_chosen`).

    If an arm's own value and the baseline's are equal, the row at its own value belongs to both choices.
    """
    base = baselines(study, rows, "own")

    def is_at(row: Row) -> bool:
        own = base.get(row.setting)
        return row.at == at or (own is not None and (row.at, at, row.value) == ("own", "baseline", own.value))

    return [row for row in rows if row.against and is_at(row)]


def across(study: Study, rows: Sequence[Row], arm: str, at: str) -> dict[str, Row]:
    """Return, by setting, the row of an arm that is compared with the baseline at one choice of the value."""
    return {row.setting: row for row in compared_at(study, rows, at) if row.arm == arm}


def _corrected(rows: Sequence[Row], study: Study) -> list[Row]:
    """Return the rows with Holm-corrected p-values for the measure, over all arms compared in a setting at a value."""
    made = list(rows)
    for setting, at in dict.fromkeys((row.setting, row.at) for row in rows):
        family = [row for row in compared_at(study, rows, at) if row.setting == setting]
        p = [row.against.effects[study.measure].p if row.against else None for row in family]
        size = sum(one is not None for one in p)
        for row, corrected in zip(family, holm(p), strict=True):
            if row.at == at and corrected is not None:
                made[rows.index(row)] = replace(row, holm=corrected, family=size)
    return made


def _interactions(kept: KeptRuns, rows: Sequence[Row]) -> list[Interaction]:
    """Return the interactions of every arm: the difference between its effects in every pair of settings."""
    study, found = kept.study, []
    for arm, at in product(study.arms, values_chosen(study)):
        base = baselines(study, rows, at)
        mine = across(study, rows, arm, at)
        for than, setting in combinations(mine, 2):
            if at not in {mine[setting].at, mine[than].at}:
                continue  # the same as the interaction at the arm's own value
            groups = [kept.ended(row) for row in (mine[setting], base[setting], mine[than], base[than])]
            found.append(Interaction(arm, at, setting, than, kept.compare(groups, [study.measure])))
    return found
