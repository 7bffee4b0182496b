"""Test whether one run is better than another, and show the spread over seeds.

    fairseq-resid compare BASELINE RUN [RUN...] [--model averaged|last] [--subset test] [--markdown]

Every run is tested against the first one, on the outputs of fairseq-resid evaluate. p is the probability of a
difference at least this large between two equally good systems. Translations are tested by paired bootstrap (1,000
resamples) and approximate randomisation (10,000 trials), captions by paired bootstrap over images, and image models by
McNemar's test. Runs whose commands differ only in the seed and the names of folders are grouped; their mean ± standard
deviation is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cli import frame
from ..runs.run import EVALUATE, Results, Run, distinct_names
from ..scoring import kinds
from ..scoring.task import LAST, Candidate, TableRows, Task
from . import layout


def read_results(path: Path, subset: str = "test", data: Path | None = None, tokenize: str | None = None) -> Results:
    """Read the results of fairseq-resid evaluate from a run folder.

    tokenize: score the translations again with this tokeniser of sacrebleu; data: their data folder
    Raises: ValueError or FileNotFoundError naming the missing or damaged file.
    """
    run = Run(path)
    results = run.read_results(subset)
    if tokenize:
        results = kinds.of_results(results).with_tokenizer(run, results, tokenize, data)
    return results


def read_candidate(
    path: Path, model: str, subset: str, data: Path | None = None, tokenize: str | None = None
) -> Candidate:
    """Read the results and the outputs of a model of a run; `model` is ignored by tasks without averages.

    Raises: as `read_results`, and ValueError naming the file whose outputs do not match the results.
    """
    run, results = Run(path), read_results(path, subset, data, tokenize)
    task = kinds.of_results(results)
    model = model if task.has_averages else LAST
    score, outputs = task.read_outputs(run, subset, results, model, data)
    return Candidate(path, results, task, model, score, outputs, run.name)


def with_distinct_names(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name the candidates by their paths if their folders have the same name."""
    names = distinct_names([each.path for each in candidates])
    return [replace(each, name=name) for each, name in zip(candidates, names, strict=True)]


def check_comparable(candidates: Sequence[Candidate]) -> None:
    """Raise ValueError naming two runs and their difference if their scores cannot be compared."""
    one_task({each.path: each.results for each in candidates})
    for other in candidates[1:]:
        candidates[0].task.check_comparable(candidates[0], other)


def one_task(by_path: Mapping[Path, Results]) -> Task[Any]:
    """Return the task that all results belong to.

    Raises: ValueError naming two runs of different tasks.
    """
    found = {kinds.of_results(results).folder.content: path for path, results in by_path.items()}
    if len(found) > 1:
        (mine, first), (theirs, second), *_ = sorted(found.items())
        raise ValueError(f"{first} and {second} cannot be compared: a model of {mine} and a model of {theirs}")
    return kinds.of_results(next(iter(by_path.values())))


def seeds(candidates: Sequence[Candidate]) -> list[str]:
    """Return a line for every group of runs that differ only by seed."""
    groups: dict[str, list[tuple[str, Candidate]]] = {}
    for candidate in candidates:
        setting, seed = Run(candidate.path).setting_and_seed()
        groups.setdefault(setting, []).append((seed, candidate))
    lines = []
    for alike in groups.values():
        group = [candidate for _, candidate in alike]
        names = ", ".join(each.name for each in group)
        if len({seed for seed, _ in alike}) < len(group):
            lines.append(f"{names}: same settings, but at least two have the same seed; no spread over seeds is shown")
        elif len(group) > 1:
            task, results = group[0].task, group[0].results
            name = f"{results.architecture} {results.subset}" if task.shows_spread else results.architecture
            lines.append(f"{name}, {len(group)} seeds ({names}): {task.spread(group)}")
    if 1 < len(groups) == len(candidates):
        lines.append("one seed each: p tells whether these models differ, not whether their structures or settings do")
    return lines


def tested(candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows, list[str]]:
    """Return headings, rows and notes for comparable runs, tested against the first one."""
    task = candidates[0].task
    rows, notes = task.compare(candidates)
    return task.headings, rows, [*notes, *seeds(candidates)]


@frame.command(
    "compare",
    f"Test every run against the first, on the outputs of {EVALUATE}: translations by paired bootstrap and approximate "
    "randomisation (sacrebleu), captions by paired bootstrap, and image models by McNemar's test. Runs that differ "
    "only by seed are grouped, with mean ± standard deviation.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="evaluated run folders; the first is the baseline")
    add(
        "--model",
        choices=("averaged", "last"),
        default="averaged",
        help="model to compare (default averaged); for image models always the last checkpoint",
    )
    add("--subset", default="test", help="subset of the data (default test)")
    layout.add_flags(parser)
    options = parser.parse_args(argv)
    if len(options.runs) < 2:
        parser.error(f"{len(options.runs)} run: must be at least two")
    how = options.model, options.subset, options.data, options.tokenize
    candidates = with_distinct_names([read_candidate(path, *how) for path in options.runs])
    check_comparable(candidates)
    layout.write_table(*tested(candidates), options.markdown)
