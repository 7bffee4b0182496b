"""One table of several evaluated runs: parameters, scores with their signature, and speed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cli import frame
from ..cli.progress import clock
from ..console import say, with_lines
from ..runs.run import Results, Run, distinct_names
from ..scoring import kinds
from . import compare, layout


def headings(runs: dict[Path, Results]) -> tuple[str, ...]:
    """Return the headings of a table of these runs.

    Raises: ValueError if the runs belong to different tasks.
    """
    return ("run", "architecture", "parameters", *compare.one_task(runs).table_headings, "time")


def rows(runs: dict[Path, Results]) -> list[tuple[str, ...]]:
    names = distinct_names([*runs])
    return [row(name, path, results) for name, (path, results) in zip(names, runs.items(), strict=True)]


def row(name: str, path: Path, results: Results) -> tuple[str, ...]:
    """Return the cells of a run. The time shown is the time spent in training steps."""
    speed, seconds = results.training.tokens_per_second, results.training.train_seconds
    return (
        name,
        results.architecture,
        f"{results.parameters:,}",
        *kinds.of_results(results).table_scores(Run(path), results),
        "-" if speed is None else f"{speed:,.0f}",
        "-" if seconds is None else clock(seconds),
    )


def test_set(results: Results) -> str:
    """Return the SHA-256 of a run's test set; empty if the data folder of results before version 1.1 is gone."""
    try:
        return results.test_set or kinds.of_results(results).test_set(results)
    except (OSError, ValueError):
        return ""


def names_of_test_sets(runs: Sequence[Results]) -> list[str]:
    """Return the name of every run's test set; different sets of one name are distinguished by their SHA-256."""
    names, sets = [f"{it.corpus} {it.subset}" for it in runs], [*map(test_set, runs)]
    versions = {name: {it for other, it in zip(names, sets, strict=True) if other == name} for name in names}
    return [
        name if len(versions[name]) == 1 else f"{name} (sha256 {it[:12] + '...' if it else 'unknown'})"
        for name, it in zip(names, sets, strict=True)
    ]


def notes(runs: dict[Path, Results]) -> list[str]:
    """Return the lines below the table: the data and signature (once if all runs share them)."""
    signatures = [kinds.of_results(it).signature(it) for it in runs.values()]
    about = [*zip(names_of_test_sets([*runs.values()]), signatures, strict=True)]
    if len(set(about)) == 1:
        return [*about[0]]
    named = zip(distinct_names([*runs]), about, strict=True)
    return [line for name, (text, score) in named for line in (f"{name}: {text}", score)]


@frame.command(
    "table",
    "Print a table of evaluated runs. Runs without scores are named on stderr; the exit code is 2 if none has scores.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Print the table; return 1 if --at-least is given and a score is missing or lower."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder that fairseq-resid evaluate has scored")
    add("--at-least", type=float, metavar="BLEU", help="exit with code 1 if a score is missing or lower")
    layout.add_flags(parser)
    options = parser.parse_args(argv)
    runs: dict[Path, Results] = {}
    missing: list[FileNotFoundError] = []
    for path in options.runs:
        try:
            runs[path] = compare.read_results(path, "test", options.data, options.tokenize)
        except FileNotFoundError as error:
            missing.append(error)
    if not runs:
        raise with_lines(missing[0], map(str, missing[1:]))
    least = options.at_least
    for path, results in runs.items() if least is not None else ():
        if results.bleu is None:
            content = kinds.of_results(results).folder.content
            raise ValueError(f"--at-least {least:g}: applies to BLEU, but {path} is a model of {content}")
    layout.write_table(headings(runs), rows(runs), notes(runs), options.markdown)
    for absent in missing:
        say(f"{parser.prog}: warning: {absent}", file=sys.stderr)
    if least is None:
        return 0
    below = {path: it.bleu["averaged"] for path, it in runs.items() if it.bleu and it.bleu["averaged"] < least}
    for path, score in below.items():
        say(f"{path}: BLEU {score:.2f} is below {least:g}", file=sys.stderr)
    return 1 if below or missing else 0
