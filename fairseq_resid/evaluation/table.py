"""One table of several evaluated runs: parameters, BLEU, speed, and which BLEU it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from ..commands import frame
from ..folders import records
from ..folders.run import Results, Run
from . import layout
from .baselines import Baselines

HEADINGS = ("run", "architecture", "parameters", "BLEU avg", "BLEU last", "tokens/s", "time")
LEFT = 2  # columns of text


def row(path: Path, results: Results) -> tuple[str, ...]:
    """Return the cells of a run; the time is that of its training steps."""
    speed, seconds = results.training.tokens_per_second, results.training.train_seconds
    return (
        Run(path).name,
        results.architecture,
        f"{results.parameters:,}",
        f"{results.bleu.averaged:.2f}",
        f"{results.bleu.last:.2f}",
        "-" if speed is None else f"{speed:,.0f}",
        "-" if seconds is None else str(timedelta(seconds=round(seconds))),
    )


def notes(runs: dict[Path, Results], baselines: Baselines | None) -> list[str]:
    """Return the lines below the table: which BLEU it is, once if it is one, and the baselines."""
    kinds = {Run(path).name: (f"{it.corpus} {it.subset}", it.signature) for path, it in runs.items()}
    if len(set(kinds.values())) == 1:
        text, signature = next(iter(kinds.values()))
        lines = [text, f"BLEU {signature}"]
    else:
        lines = [line for name, (text, signature) in kinds.items() for line in (f"{name}: {text}", f"BLEU {signature}")]
    if baselines is not None:
        lines.append(baselines.line())
    return lines


def markdown(runs: dict[Path, Results], baselines: Baselines | None) -> str:
    """Return the table as Markdown."""
    return layout.markdown(HEADINGS, [row(*run) for run in runs.items()], notes(runs, baselines), LEFT)


def show(runs: dict[Path, Results], baselines: Baselines | None, console: Console) -> None:
    """Print the table."""
    layout.show(HEADINGS, [row(*run) for run in runs.items()], notes(runs, baselines), LEFT, console)


@frame.command("table", "Print one table of evaluated runs.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Print the table; returns 1 if a score is below --at-least."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder with results.json, by fairseq-resid evaluate")
    add("--baselines", type=Path, metavar="FILE", help="what `fairseq-resid baselines --json` wrote")
    add("--floors", action=frame.Renamed, new="--baselines")
    add("--at-least", type=float, metavar="BLEU", help="exit with code 1 if an averaged model scores less")
    add("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(argv)
    runs = {path: Run(path).read_results() for path in options.runs}
    known = records.read(options.baselines, Baselines, "fairseq-resid baselines") if options.baselines else None
    if options.markdown:
        print(markdown(runs, known), end="")
    else:
        show(runs, known, Console(highlight=False))
    below = [path for path in runs if runs[path].bleu.averaged < (options.at_least or 0)]
    for path in below:
        print(f"{path}: BLEU {runs[path].bleu.averaged:.2f} is below {options.at_least:g}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
