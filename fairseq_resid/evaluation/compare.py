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

from rich.console import Console

from ..cli import frame
from ..data.text.bleu import TOKENIZERS
from ..runs.run import EVALUATE, Results, Run, distinct_names
from ..scoring import kinds
from ..scoring.task import LAST, Candidate, TableRows, Task
from . import layout

LEFT = 2  # columns of text


def read_candidate(
    path: Path, model: str, subset: str, data: Path | None = None, tokenize: str | None = None
) -> Candidate:
    """Read the results of fairseq-resid evaluate from a run folder; `model` is ignored by tasks without averages.

    tokenize: score the translations again with this tokeniser of sacrebleu
    Raises: ValueError or FileNotFoundError naming the file that is missing or damaged, or that does not match the
    results.
    """
    run = Run(path)
    results = run.read_results(subset)
    task = kinds.of_results(results)
    model = model if task.has_averages else LAST
    if tokenize:
        results = task.with_tokenizer(run, results, tokenize, data)
    return Candidate(
        path,
        results,
        task,
        model,
        *task.read_outputs(run, subset, results, model, data),
        *run.setting_and_seed(),
        run.name,
    )


def with_distinct_names(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name the candidates by their paths if their folders have the same name."""
    names = distinct_names([each.path for each in candidates])
    return [replace(each, name=name) for each, name in zip(candidates, names, strict=True)]


def check_comparable(candidates: Sequence[Candidate]) -> None:
    """Raise ValueError naming two runs and their difference if their scores cannot be compared."""
    for other in candidates[1:]:
        candidates[0].task.check_comparable(candidates[0], other)


def seeds(candidates: Sequence[Candidate]) -> list[str]:
    """Return a line for every group of runs that differ only by seed."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.setting, []).append(candidate)
    lines = []
    for group in groups.values():
        names = ", ".join(each.name for each in group)
        if len({each.seed for each in group}) < len(group):
            lines.append(f"{names}: same settings, but at least two have the same seed; no spread over seeds is shown")
        elif len(group) > 1:
            task, results = group[0].task, group[0].results
            name = f"{results.architecture} {results.subset}" if task.shows_spread else results.architecture
            lines.append(f"{name}, {len(group)} seeds ({names}): {task.spread(group)}")
    return lines


def one_task(by_path: Mapping[Path, Results], what: str) -> Task[Any]:
    """Return the task that all results belong to.

    what: template of the error message, with the fields {first}, {first_content}, {second}, {second_content}
    Raises: ValueError if the results belong to different tasks.
    """
    found = {kinds.of_results(results).folder.content: path for path, results in by_path.items()}
    if len(found) > 1:
        (first_content, first), (second_content, second), *_ = sorted(found.items())
        raise ValueError(
            what.format(first=first, first_content=first_content, second=second, second_content=second_content)
        )
    return kinds.of_results(next(iter(by_path.values())))


@frame.command(
    "compare",
    f"Test every run against the first, on the outputs of {EVALUATE}: translations by paired bootstrap and approximate "
    "randomisation (sacrebleu), captions by paired bootstrap, and image models by McNemar's test. Runs that differ "
    "only by seed are grouped, with mean ± standard deviation.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid compare`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="evaluated run folders; the first is the baseline")
    add(
        "--model",
        choices=("averaged", "last"),
        default="averaged",
        help="model to compare (default averaged); for image models always the last checkpoint",
    )
    add("--subset", default="test", help="subset of the data (default test)")
    add("--data", type=Path, help="data folder (default: the one named in the results)")
    add("--tokenize", choices=TOKENIZERS, help="score again with this tokeniser of sacrebleu (default: as evaluated)")
    add("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(argv)
    if len(options.runs) < 2:
        parser.error(f"{len(options.runs)} run: must be at least two")
    headings, rows, notes = compared(options.runs, options.model, options.subset, options.data, options.tokenize)
    if options.markdown:
        print(layout.markdown(headings, rows, notes, LEFT), end="")
    else:
        layout.show(headings, rows, notes, LEFT, Console(highlight=False))


def compared(
    paths: Sequence[Path], model: str, subset: str, data: Path | None, tokenize: str | None = None
) -> tuple[tuple[str, ...], TableRows, list[str]]:
    """Return headings, rows and notes for evaluated runs; the first run is the baseline.

    Raises: ValueError or FileNotFoundError naming the runs that cannot be compared, or the missing or damaged file.
    """
    results = {path: Run(path).read_results(subset) for path in paths}
    one_task(
        results,
        "{first} and {second} cannot be compared: a model of {first_content} and a model of {second_content}",
    )
    candidates = with_distinct_names([read_candidate(path, model, subset, data, tokenize) for path in paths])
    check_comparable(candidates)
    return tested(candidates)


def tested(candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows, list[str]]:
    """Return headings, rows and notes for comparable runs, tested against the first one."""
    task = candidates[0].task
    rows, notes = task.compare(candidates)
    return task.headings, rows, [*notes, *seeds(candidates)]
