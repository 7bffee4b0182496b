"""Whether one run is better than another: paired significance tests, and the spread over seeds.

    fairseq-resid compare BASELINE RUN [RUN...] [--model averaged|last] [--subset test] [--markdown]

Every run is tested against the first one, on the outputs that fairseq-resid evaluate left. p is the chance of so large
a difference between two systems that are equally good: of translations by paired bootstrap (1,000 resamples) and by
approximate randomisation (10,000 trials), of images by McNemar's test. Runs whose commands differ only by --seed form a
group: mean ± standard deviation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import records
from ..cli import frame
from ..runs.run import EVALUATE, Results, Run, RunRecord
from ..runs.training_command import TrainingCommand
from ..tasks import kinds
from ..tasks.protocol import LAST, Candidate, TableRows, Task
from . import layout

LEFT = 2  # columns of text
# Of a training command: what two runs of one setting have each for itself.
OWN_FLAGS = ("--seed", "--save-dir", "--log-file", "--user-dir")


def read_candidate(path: Path, model: str, subset: str, data: Path | None = None) -> Candidate:
    """Read what fairseq-resid evaluate left in a run folder; `model` counts where there are averages.

    Raises: ValueError or FileNotFoundError naming the file that is missing, damaged, or not of these results.
    """
    run = Run(path)
    results = run.read_results(subset)
    task = kinds.of_results(results)
    model = model if task.has_averages else LAST
    return Candidate(
        path, results, task, model, *task.read_outputs(run, subset, results, model, data), *setting_and_seed(run)
    )


def setting_and_seed(run: Run) -> tuple[str, str]:
    """Return a training's command without the flags that differ between seeds, and its seed.

    If no command is known, the folder stands for it.
    """
    record = records.remembered(run.record, RunRecord)
    if record is None:
        return str(run.path.resolve()), ""
    command = TrainingCommand.parse(record.command)
    return json.dumps(command.without(OWN_FLAGS).argv), command.value("--seed", "1")


def check_comparable(candidates: Sequence[Candidate]) -> None:
    """Raise ValueError naming two runs and what differs if their scores cannot be compared."""
    for other in candidates[1:]:
        candidates[0].task.check_comparable(candidates[0], other)


def seeds(candidates: Sequence[Candidate]) -> list[str]:
    """Return a line for every setting that was run with several seeds."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.setting, []).append(candidate)
    lines = []
    for group in groups.values():
        names = ", ".join(each.name for each in group)
        if len({each.seed for each in group}) < len(group):
            lines.append(f"{names}: the same settings, and some have the same seed: there is no spread over seeds")
        elif len(group) > 1:
            task = group[0].task
            spread = task.spread([each.score for each in group])
            lines.append(f"{task.setting_name(group[0])}, {len(group)} seeds ({names}): {spread}")
    return lines


def one_task(by_path: Mapping[Path, Results], what: str) -> Task[Any]:
    """Return the kind of task that all results are of.

    what: the error if they are not, with {first}, {first_content}, {second}, {second_content}
    Raises: ValueError.
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
    "Test every run against the first by paired bootstrap and approximate randomisation (sacrebleu), on what "
    f"{EVALUATE} left. Runs that differ only by their seed get a line with mean ± standard deviation.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid compare`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="evaluated run folders; the first is the baseline")
    add(
        "--model",
        choices=("averaged", "last"),
        default="averaged",
        help="whose translations (default averaged); of images always the last model",
    )
    add("--subset", default="test", help="the part of the data (default test)")
    add("--data", type=Path, help="the data folder (default: the one named in the results)")
    add("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(argv)
    if len(options.runs) < 2:
        parser.error(f"{len(options.runs)} run: at least two are needed")
    if len({path.resolve() for path in options.runs}) < len(options.runs):
        parser.error("the same run is named twice")
    headings, rows, notes = compared(options.runs, options.model, options.subset, options.data)
    if options.markdown:
        print(layout.markdown(headings, rows, notes, LEFT), end="")
    else:
        layout.show(headings, rows, notes, LEFT, Console(highlight=False))


def compared(
    paths: Sequence[Path], model: str, subset: str, data: Path | None
) -> tuple[tuple[str, ...], TableRows, list[str]]:
    """Return headings, rows and notes of evaluated runs, the first of which is the baseline.

    Raises: ValueError or FileNotFoundError naming the runs that cannot be compared, or the file that is damaged.
    """
    results = {path: Run(path).read_results(subset) for path in paths}
    one_task(
        results,
        "{first} and {second} cannot be compared: the one is of {first_content}, the other of {second_content}",
    )
    candidates = [read_candidate(path, model, subset, data) for path in paths]
    check_comparable(candidates)
    return tested(candidates)


def tested(candidates: Sequence[Candidate]) -> tuple[tuple[str, ...], TableRows, list[str]]:
    """Return headings, rows and notes of runs that can be compared, tested against the first one."""
    task = candidates[0].task
    rows, notes = task.compare(candidates)
    return task.headings, rows, [*notes, *seeds(candidates)]
