"""The scores of a study's runs as one table, and the comparisons computed from it.

A difference is computed in four steps: select the rows of a group of runs and a measure (`where`), arrange them by seed
and sentence (`parts`), compute a value for every sentence (`values`), and compare the groups (`compare`, which calls
`statistics.effect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.run import Run
from ..scoring.task import NLL
from . import plan
from .kept import Note, nll_of
from .plan import Group, Study
from .statistics import Effect, Pool, effect, pseudo_values

# Signs of a difference, and of a difference of differences.
SIGNS = (1.0, -1.0, -1.0, 1.0)
QUARTERS = 4
KEYS = (*Group._fields, "seed", "measure", "test")
KeptStudy = tuple[Study, Mapping[str, Note], Path]  # a study, the notes of its kept runs, and their folder
Comparison = dict[str, Any]  # see results.py


def where(table: np.ndarray, **wanted: object) -> np.ndarray:
    """Return the rows of a structured array that have these values."""
    for column, value in wanted.items():
        table = table[table[column] == value]
    return table


class StudyRuns:
    """The runs of a study, and those of other studies that appear in its contrasts.

    ended: notes of the finished and diverged runs of each group, by seed, without tuning runs
    table: a row for each sentence of each test set, measure and finished run. Columns: setting, arm, value and study of
        the group; seed; measure; test; sentence, its number in the test set; parts, the terms of the measure that are
        summed over sentences, followed by zeros
    Raises: ValueError naming a run that was scored on another number of sentences, or the damaged file.
    """

    def __init__(self, own: KeptStudy, others: Mapping[str, KeptStudy]) -> None:
        self.study, self.studies = own[0], {"": own, **others}
        self.measures = self.study.task.studied.measures
        self.tuning = {name: plan.choices(study, nll_of(notes)) for name, (study, notes, _) in self.studies.items()}
        self.contrasts = [[self.group(text) for text in texts] for texts in self.study.contrasts]
        self.ended: dict[Group, list[Note]] = {}
        for name, (_, notes, _) in self.studies.items():
            for note in sorted(notes.values(), key=lambda note: note.run.seed):
                group = Group(note.run.setting, note.run.arm, note.run.value, name)
                if not note.run.is_tuning and (not name or any(group in groups for groups in self.contrasts)):
                    self.ended.setdefault(group, []).append(note)
        self.table = self._read()
        self.parts, self.values, self.pool = cache(self._parts), cache(self._values), cache(self._pool)

    def group(self, text: str) -> Group:
        """Return a group of a contrast. If the text names no value, it is the arm's own best."""
        name, rest = plan.study_and_group(text)
        group = plan.group(self.studies[name][0], rest)._replace(study=name)
        own = self.tuning[name].get((group.setting, group.arm))
        return group._replace(value=own.best) if group.value is None and own is not None else group

    def finished(self, group: Group) -> list[Note]:
        return [note for note in self.ended.get(group, ()) if note.outcome == "finished"]

    def run(self, group: Group, note: Note) -> Run:
        return Run(self.studies[group.study][2] / note.run.name)

    def _read(self) -> np.ndarray:
        blocks: list[tuple[list[Any], np.ndarray]] = []
        counts: dict[str, tuple[int, str]] = {}  # the number of sentences of a test set, and where it comes from
        for group, measure in product(self.ended, self.measures):
            # Quarters need the NLL of the test sets of the study's measure.
            tests = self.study.tests_of(measure) + (self.study.tests_of(self.study.measure) if measure == NLL else ())
            for note, test in product(self.finished(group), dict.fromkeys(tests)):
                run = self.run(group, note)
                parts = np.array(self.measures[measure].parts(run, test))
                count, where_from = counts.setdefault(test, (len(parts), f"{measure} of {run.path.name}"))
                if len(parts) != count:
                    examples = f"{len(parts)} {self.study.task.words.examples} of {test}"
                    raise ValueError(f"{run.path}: {measure} of {examples}, but {where_from} of {count}")
                blocks.append(([*group, note.run.seed, measure, test], parts))
        width = max((parts.shape[1] for _, parts in blocks), default=1)
        columns: list[Any] = [*((key, object) for key in KEYS), ("sentence", int), ("parts", float, width)]
        table, end = np.zeros(sum(len(parts) for _, parts in blocks), columns), 0
        for keys, parts in blocks:
            rows = table[end : (end := end + len(parts))]
            for column, key in zip(KEYS, keys, strict=True):
                rows[column] = key
            rows["sentence"] = np.arange(len(parts))
            rows["parts"][:, : parts.shape[1]] = parts
        return table

    def _parts(self, group: Group, measure: str, tests: tuple[str, ...]) -> np.ndarray:
        """Return the parts of a measure for a group, (finished seeds, sentences of all test sets, k)."""
        rows, seeds = where(self.table, **group._asdict(), measure=measure), len(self.finished(group))
        by_test = [where(rows, test=test)["parts"] for test in tests]
        return np.concatenate([parts.reshape(seeds, -1, parts.shape[1]) for parts in by_test], axis=1)

    def _values(self, group: Group, measure: str) -> np.ndarray:
        """Return the pseudo-values of a measure for a group, (finished seeds, sentences of all its test sets)."""
        parts = self.parts(group, measure, self.study.tests_of(measure))
        return np.stack([pseudo_values(of_seed, self.measures[measure].score) for of_seed in parts])

    def sentences(self, measure: str) -> int:
        tests = [where(self.table, measure=measure, test=test) for test in self.study.tests_of(measure)]
        return sum(int(rows["sentence"].max(initial=-1)) + 1 for rows in tests)

    def quarters(self, groups: Sequence[Group], measure: str) -> list[list[np.ndarray]]:
        """Return the pseudo-values of a measure by quarter and group, on the test sets of the study's measure.

        The first quarter has the easiest sentences. The difficulty of a sentence is its NLL per token, averaged over
        the runs of each group and then over the groups, so that none of them is favoured. With fewer sentences than
        quarters, some quarters are empty.
        """
        tests, score = self.study.tests_of(self.study.measure), self.measures[measure].score
        nll = [self.parts(group, NLL, tests) for group in groups]
        difficulty = np.mean([(parts[..., 0] / parts[..., 1]).mean(axis=0) for parts in nll], axis=0)
        return [
            [
                np.stack([pseudo_values(of_seed[chosen], score) for of_seed in self.parts(group, measure, tests)])
                for group in groups
                if chosen.size
            ]
            for chosen in np.array_split(np.argsort(difficulty, kind="stable"), QUARTERS)
        ]

    def untested(self, groups: Sequence[Group]) -> str:
        """Return the reason for omitting the intervals and p of a comparison; "" if there is none."""
        task, finished = self.study.task, [self.finished(group) for group in groups]
        if not all(finished):
            return "not finished"
        if lost := sum(len(self.ended[group]) for group in groups) - sum(map(len, finished)):
            return f"{lost} diverged"
        if task.studied.floor is not None:
            name, least = task.studied.floor
            if any(note.scores[task.studied.best][name].score < least for notes in finished for note in notes):
                return f"{name} below {least:g}"
        return ""

    def compared(
        self, groups: Sequence[Group], samples: Mapping[str, Sequence[np.ndarray]], arms: Iterable[Group] = ()
    ) -> Comparison:
        """Return a comparison of groups. samples: (seeds, sentences) values of each group, by measure; arms: to pool"""
        untested = self.untested(groups)
        found = {
            measure: effect(list(zip(SIGNS, of, strict=False)), self.pool(tuple(arms), measure))
            for measure, of in samples.items()
            if of
        }
        return {
            "seeds": [len(self.finished(group)) for group in groups],
            "effects": {name: asdict(Effect(one.difference) if untested else one) for name, one in found.items()},
            "untested": untested,
        }

    def _pool(self, arms: tuple[Group, ...], measure: str) -> Pool | None:
        return Pool.of([self.values(group, measure) for group in arms if not self.untested([group])])

    def compare(self, groups: Sequence[Group], measures: Iterable[str], arms: Iterable[Group] = ()) -> Comparison:
        """Compare two groups of finished runs, or two pairs of groups by their differences.

        arms: the groups over which variances are pooled, except those that are not tested
        """
        names = measures if all(map(self.finished, groups)) else ()
        return self.compared(groups, {name: [self.values(group, name) for group in groups] for name in names}, arms)

    def compare_quarters(self, groups: Sequence[Group], measures: Iterable[str]) -> list[Comparison]:
        """Compare two groups on each quarter of the sentences, the easiest first."""
        by_measure = {measure: self.quarters(groups, measure) for measure in measures}
        return [
            self.compared(groups, {name: of[number] for name, of in by_measure.items()}) for number in range(QUARTERS)
        ]
