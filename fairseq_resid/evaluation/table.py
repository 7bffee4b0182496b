"""One table of several evaluated runs: parameters, BLEU, speed, and which BLEU it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from .. import records
from ..cli import frame
from ..foreign import say
from ..runs.run import Results, Run
from . import images, layout
from .baselines import Baselines

HEADINGS = ("run", "architecture", "parameters", "BLEU avg", "BLEU last", "tokens/s", "time")
IMAGE_HEADINGS = ("run", "architecture", "parameters", "error %", "NLL", "images/s", "time")
LEFT = 2  # columns of text


def headings(runs: dict[Path, Results]) -> tuple[str, ...]:
    """Return the headings of a table of these runs.

    Raises: ValueError if some of them are of images and some of text.
    """
    kinds = {results.bleu is None: path for path, results in runs.items()}
    if len(kinds) > 1:
        raise ValueError(f"{kinds[True]} is of images and {kinds[False]} of text: give them a table each")
    return IMAGE_HEADINGS if True in kinds else HEADINGS


def row(path: Path, results: Results) -> tuple[str, ...]:
    """Return the cells of a run; the time is that of its training steps."""
    speed, seconds = results.training.tokens_per_second, results.training.train_seconds
    if results.bleu is None:
        error, nll = (images.score_of(Run(path), results, measure) for measure in (images.ERROR, images.NLL))
        scores = f"{error:.2f}", f"{nll:.4f}"
    else:
        scores = f"{results.bleu.averaged:.2f}", f"{results.bleu.last:.2f}"
    return (
        Run(path).name,
        results.architecture,
        f"{results.parameters:,}",
        *scores,
        "-" if speed is None else f"{speed:,.0f}",
        "-" if seconds is None else str(timedelta(seconds=round(seconds))),
    )


def notes(runs: dict[Path, Results], baselines: Baselines | None) -> list[str]:
    """Return the lines below the table: which BLEU it is, once if it is one, and the baselines."""
    kinds = {
        Run(path).name: (f"{it.corpus} {it.subset}", f"BLEU {it.signature}" if it.bleu else images.UNITS[images.ERROR])
        for path, it in runs.items()
    }
    if len(set(kinds.values())) == 1:
        lines = list(next(iter(kinds.values())))
    else:
        lines = [line for name, (text, score) in kinds.items() for line in (f"{name}: {text}", score)]
    if baselines is not None:
        lines.append(baselines.line())
    return lines


def markdown(runs: dict[Path, Results], baselines: Baselines | None) -> str:
    """Return the table as Markdown."""
    return layout.markdown(headings(runs), [row(*run) for run in runs.items()], notes(runs, baselines), LEFT)


def show(runs: dict[Path, Results], baselines: Baselines | None, console: Console) -> None:
    """Print the table."""
    layout.show(headings(runs), [row(*run) for run in runs.items()], notes(runs, baselines), LEFT, console)


@frame.command("table", "Print one table of evaluated runs.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Print the table; returns 1 if a score is below --at-least."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder with results.json, by fairseq-resid evaluate")
    add("--baselines", type=Path, metavar="FILE", help="what `fairseq-resid baselines --json` wrote")
    add("--at-least", type=float, metavar="BLEU", help="exit with code 1 if an averaged model scores less")
    add("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(argv)
    runs = {path: Run(path).read_results() for path in options.runs}
    known = records.read(options.baselines, Baselines, "fairseq-resid baselines") if options.baselines else None
    if options.at_least is not None and any(results.bleu is None for results in runs.values()):
        raise ValueError(f"--at-least {options.at_least:g}: a BLEU, and these runs are of images")
    if options.markdown:
        print(markdown(runs, known), end="")
    else:
        show(runs, known, Console(highlight=False))
    below = {
        path: it.bleu.averaged for path, it in runs.items() if it.bleu and it.bleu.averaged < (options.at_least or 0)
    }
    for path, score in below.items():
        say(f"{path}: BLEU {score:.2f} is below {options.at_least:g}", file=sys.stderr)
    return 1 if below else 0
