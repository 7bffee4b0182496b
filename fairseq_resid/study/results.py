"""The results of a study, computed from its kept runs: the content of results.json.

Tables and plots are made from these fields alone:

title, measure, baseline
tests, sentences          test sets and number of sentences, by measure
signatures                by score
rows                      the arms in each setting, at each choice of the tuned value:
    setting, arm, value
    at                    "own" or "baseline" (the value is the arm's own best, or the baseline's), a value fixed by the
                          plan, or "" without tuning
    seeds, diverged       finished seeds; seeds whose training diverged
    planned               number of planned seeds
    parameters, hours     parameters of the model; training and evaluation of a run
    means                 mean, sd (null for a single seed) and count over seeds, by model and score
    by_seed, curve        the measure for each seed; (epoch, validation), the mean over seeds
    against               comparison with the baseline in the same setting, at its own best or the same fixed value
    gap                   the curve minus the baseline's
    quarters              comparisons on each quarter of the sentences, of the NLL and the study's measure
    holm, family          Holm-corrected p; the number of arms in this correction
interactions              how much more an arm gains over the baseline in one setting than in another:
                          arm, at, setting, than, comparison
contrasts                 groups, as written in the study file; comparison
tuned                     setting, arm, tried: (value, validation NLL, null if the run diverged), best
machines                  number of runs by machine
missing, unnamed          unfinished runs; number of runs that tuning has not determined yet
without_data, exploded    runs without a data fingerprint; runs whose gradient exploded, except tuning runs (both with
                          the runs of other studies that appear in the contrasts, as STUDY/RUN)
archive                   SHA-256 of the archive that contains the runs, if they are packed

A comparison of two groups of runs, or of two differences, has these fields:

seeds                     number of finished seeds in each group
effects                   by measure, see `statistics.Effect`; empty unless every group has a finished run
untested                  reason for omitting intervals and p: a group has no finished run, a run diverged, so that the
                          remaining seeds are a biased sample, or a run did not train; otherwise ""
"""

from __future__ import annotations

import statistics as plain
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from .. import records
from ..analysis import curves
from ..runs.run import Run, RunRecord
from ..scoring.task import NLL
from . import archive, plan
from .kept import Note, load_notes, nll_of
from .plan import Group, Study
from .scores import KeptStudy, StudyRuns
from .statistics import holm

Row = dict[str, Any]
Results = dict[str, Any]


def rows_of(runs: StudyRuns) -> list[Row]:
    """Return the rows by setting: the arms at their own values, then at the baseline's and at fixed ones."""
    study, tuning = runs.study, runs.tuning[""]
    planned: dict[tuple[str, str, str], tuple[float | None, int]] = {}
    for step in study.plan:
        for arm in step.arms if step.seeds else ():
            value, at = plan.value_of(study, step, arm, tuning), step.label if study.tuning else ""
            if study.tuning and value is None:
                continue  # not known yet
            own = tuning.get((step.setting, arm))
            if at == "baseline" and own is not None and value == own.best:
                at = "own"  # the runs are those at its own value
            _, seeds = planned.get((step.setting, at, arm), (None, 0))
            planned[step.setting, at, arm] = value, max(seeds, step.seeds)
    rows = [
        one_row(runs, Group(setting, arm, value), at, seeds)
        for setting, at, arm in product(study.settings, choices_of_value(study), study.arms)
        for value, seeds in [planned.get((setting, at, arm), (None, 0))]
        if seeds and Group(setting, arm, value) in runs.ended
    ]
    for row in rows:
        base = baseline_of(rows, study.baseline, row["setting"], row["at"])
        if base is not None and row["arm"] != study.baseline:
            arms = dict.fromkeys(group_of(one) for one in rows if one["setting"] == row["setting"])
            add_comparisons(runs, row, base, list(arms))
    add_corrected(rows, study.baseline, study.measure)
    return rows


def choices_of_value(study: Study) -> list[str]:
    """Return the choices of the tuned value, `at` of a row, in order."""
    fixed = sorted({step.fixed for step in study.plan if step.fixed is not None})
    return ["own", "baseline", *(f"{value:g}" for value in fixed), ""]


def one_row(runs: StudyRuns, group: Group, at: str, planned: int) -> Row:
    """Return a row without its comparisons."""
    task, finished = runs.study.task, runs.finished(group)
    scores: dict[str, list[dict[str, float]]] = {}  # of every run, by model
    for note in finished:
        for model, scored in note.scores.items():
            scores.setdefault(model, []).append({name: one.score for name, one in scored.items()})
    means = {
        model: {name: mean([one[name] for one in of_runs if name in one]) for name in of_runs[0]}
        for model, of_runs in scores.items()
    }
    hours = [note.seconds / 3600 for note in finished if note.seconds is not None]
    return {
        "setting": group.setting,
        "arm": group.arm,
        "at": at,
        "value": group.value,
        "seeds": [note.run.seed for note in finished],
        "diverged": [note.run.seed for note in runs.ended[group] if note.outcome != "finished"],
        "planned": planned,
        "parameters": next((note.parameters for note in finished), None),
        "hours": plain.fmean(hours) if hours else None,
        "means": means,
        "by_seed": [one[runs.study.measure] for one in scores.get(task.studied.best, ())],
        "curve": mean_curve([validation(runs.run(group, note), task.studied.curve) for note in finished]),
        "against": None,
        "gap": [],
        "quarters": [],
        "holm": None,
        "family": 0,
    }


def add_comparisons(runs: StudyRuns, row: Row, base: Row, arms: Sequence[Group]) -> None:
    """Enter the comparisons with the baseline into a row, over all seeds of both. arms: all in this setting"""
    groups = [group_of(row), group_of(base)]
    against = runs.compare(groups, runs.measures, arms)
    if against["effects"]:
        theirs = dict(base["curve"])
        gap = [(epoch, value - theirs[epoch]) for epoch, value in row["curve"] if epoch in theirs]
        quarters = runs.compare_quarters(groups, dict.fromkeys((NLL, runs.study.measure)))
        row.update(against=against, gap=gap, quarters=quarters)


def add_corrected(rows: Sequence[Row], baseline: str, measure: str) -> None:
    """Enter Holm-corrected p-values for the measure, over all arms compared in a setting at a value."""
    for setting, at in dict.fromkeys((row["setting"], row["at"]) for row in rows):
        family = [row for row in compared_at(rows, baseline, at) if row["setting"] == setting]
        p = [row["against"]["effects"][measure]["p"] for row in family]
        for row, corrected in zip(family, holm(p), strict=True):
            if row["at"] == at and corrected is not None:
                row.update(holm=corrected, family=sum(one is not None for one in p))


def group_of(row: Row) -> Group:
    return Group(row["setting"], row["arm"], row["value"])


def baseline_of(rows: Sequence[Row], baseline: str, setting: str, at: str) -> Row | None:
    """Return the baseline's row that the rows of a setting at one choice of the value are compared with, if any."""
    wanted = (setting, baseline, "own" if at == "baseline" else at)
    return next((row for row in rows if (row["setting"], row["arm"], row["at"]) == wanted), None)


def compared_at(rows: Sequence[Row], baseline: str, at: str) -> list[Row]:
    """Return the rows that are compared with the baseline at one choice of the tuned value.

    If an arm's own value and the baseline's are equal, the row at its own value belongs to both choices.
    """
    found = []
    for row in rows:
        base = baseline_of(rows, baseline, row["setting"], at)
        has_same = base is not None and (row["at"], at, row["value"]) == ("own", "baseline", base["value"])
        if row["against"] and (row["at"] == at or has_same):
            found.append(row)
    return found


def interactions(runs: StudyRuns, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the differences between the effects of an arm in every pair of settings."""
    study = runs.study
    for arm, at in product(study.arms, choices_of_value(study)):
        mine = [row for row in compared_at(rows, study.baseline, at) if row["arm"] == arm]
        for than, row in combinations(mine, 2):
            if at in (row["at"], than["at"]):  # otherwise it is the interaction at the arm's own value
                bases = [baseline_of(rows, study.baseline, one["setting"], at) for one in (row, than)]
                groups = [group_of(one) for pair in zip((row, than), bases, strict=True) for one in pair if one]
                found = runs.compare(groups, [study.measure])
                yield {"arm": arm, "at": at, "setting": row["setting"], "than": than["setting"], "comparison": found}


def mean(values: Sequence[float]) -> dict[str, Any]:
    sd = plain.stdev(values) if len(values) > 1 else None
    return {"mean": plain.fmean(values), "sd": sd, "count": len(values)}


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


def other_studies(study: Study, file: Path, notes: Mapping[str, Note]) -> dict[str, KeptStudy]:
    """Return the studies whose runs appear in the contrasts of a study file, by name.

    Raises: ValueError naming the damaged file, or the study that was scored on other data.
    """
    found: dict[str, KeptStudy] = {}
    for name, path in plan.other_files(study, file).items():
        other = records.read(path, Study)
        folder = archive.runs_folder(archive.kept_folder(path))
        theirs = load_notes(other, path, folder)
        mine, its = ({note.data for note in some.values() if note.data} for some in (notes, theirs))
        if mine and its and mine != its:
            raise ValueError(
                f"{folder}: was scored on different data than {file.stem}: its dictionaries or references differ"
            )
        found[name] = other, theirs, folder
    return found


def build_results(
    study: Study, notes: Mapping[str, Note], folder: Path, others: Mapping[str, KeptStudy] | None = None
) -> Results:
    """Compute the results of a study from its kept runs. others: see `other_studies`.

    Raises: ValueError naming the damaged file.
    """
    runs, nll = StudyRuns((study, notes, folder), others or {}), nll_of(notes)
    rows = rows_of(runs)
    scored = next((note.scores[study.task.studied.best] for note in notes.values() if note.scores), {})
    every = {name: (note, Run(folder / name)) for name, note in notes.items()}
    logs = [records.remembered(run.record, RunRecord) for _, run in every.values()]
    for group in (group for groups in runs.contrasts for group in groups if group.study):
        every |= {f"{group.study}/{note.run.name}": (note, runs.run(group, note)) for note in runs.ended.get(group, ())}
    return {
        "title": study.title,
        "measure": study.measure,
        "baseline": study.baseline,
        "tests": {measure: list(study.tests_of(measure)) for measure in runs.measures},
        "sentences": {measure: runs.sentences(measure) for measure in runs.measures},
        "signatures": {name: score.signature for name, score in scored.items()},
        "rows": rows,
        "interactions": list(interactions(runs, rows)),
        "contrasts": [
            {"groups": list(texts), "comparison": runs.compare(groups, runs.measures)}
            for texts, groups in zip(study.contrasts, runs.contrasts, strict=True)
        ],
        "tuned": [
            {
                "setting": setting,
                "arm": arm,
                "tried": [(value, one if np.isfinite(one) else None) for value, one in choice.tried.items()],
                "best": choice.best,
            }
            for (setting, arm), choice in runs.tuning[""].items()
            if choice.tried and study.tuning is not None and study.tuning.tuned_in(setting) == setting
        ],
        "machines": dict(Counter(machine(record) for record in logs if record and record.sessions).most_common()),
        "missing": [run.name for run in plan.runs(study, nll) if run.name not in notes],
        "unnamed": plan.undetermined_runs(study, nll),
        "without_data": [name for name, (note, _) in every.items() if not note.data],
        "exploded": {
            name: asdict(explosion)
            for name, (note, run) in every.items()
            if not note.run.is_tuning and (explosion := run.training_summary().explosion)
        },
        "archive": None,
    }
