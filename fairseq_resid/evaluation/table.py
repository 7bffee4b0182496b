"""One table of several evaluated runs: parameters, BLEU, speed, and which BLEU it is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from ..folders.run import Run
from . import layout

HEADINGS = ("run", "architecture", "parameters", "BLEU avg", "BLEU last", "tokens/s", "time")
LEFT = 2  # columns of text


def read(path: Path) -> dict[str, Any]:
    """Return a run's results.

    Raises: ValueError naming the file where it is missing or damaged.
    """
    file = Run(path).results()
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        row(path, results)
    except FileNotFoundError:
        raise ValueError(f"{file}: no such file: run scripts/evaluate.sh {path} first") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{file}: damaged, or not written by scripts/evaluate.sh") from None
    return dict(results)


def row(path: Path, results: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a run; the time is that of its training steps."""
    training = results["training"]
    speed, seconds = training["tokens_per_second"], training["train_seconds"]
    return (
        Run(path).name,
        results["architecture"],
        f"{results['parameters']:,}",
        f"{results['bleu']['averaged']:.2f}",
        f"{results['bleu']['last']:.2f}",
        "-" if speed is None else f"{speed:,.0f}",
        "-" if seconds is None else str(timedelta(seconds=round(seconds))),
    )


def notes(runs: dict[Path, dict[str, Any]], baselines: dict[str, Any] | None) -> list[str]:
    """Return the lines below the table: which BLEU it is, once where it is one, and the baselines."""
    kinds = {Run(path).name: (f"{it['corpus']} {it['subset']}", it["signature"]) for path, it in runs.items()}
    if len(set(kinds.values())) == 1:
        text, signature = next(iter(kinds.values()))
        lines = [text, f"BLEU {signature}"]
    else:
        lines = [line for name, (text, signature) in kinds.items() for line in (f"{name}: {text}", f"BLEU {signature}")]
    if baselines is not None:
        copy, nearest, signature = baselines["copy"], baselines["nearest_neighbour"], baselines["signature"]
        lines += [f"baselines: source copied {copy:.2f}, nearest neighbour {nearest:.2f}", f"BLEU {signature}"]
    return lines


def markdown(runs: dict[Path, dict[str, Any]], baselines: dict[str, Any] | None) -> str:
    """Return the table as Markdown."""
    return layout.markdown(HEADINGS, [row(*run) for run in runs.items()], notes(runs, baselines), LEFT)


def show(runs: dict[Path, dict[str, Any]], baselines: dict[str, Any] | None, console: Console) -> None:
    """Print the table."""
    layout.show(HEADINGS, [row(*run) for run in runs.items()], notes(runs, baselines), LEFT, console)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 2 for bad input, 1 where a score is below --at-least."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_resid.evaluation.table", description="Print one table of evaluated runs."
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder with results.json, by scripts/evaluate.sh")
    add(
        "--baselines",
        type=Path,
        metavar="FILE",
        help="what `python -m fairseq_resid.evaluation.baselines --json` wrote",
    )
    add("--at-least", type=float, metavar="BLEU", help="exit with code 1 where an averaged model scores less")
    add("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(arguments)
    try:
        runs = {path: read(path) for path in options.runs}
        baselines = None
        if options.baselines:
            try:
                baselines = json.loads(options.baselines.read_text(encoding="utf-8"))
                notes({}, baselines)
            except (ValueError, KeyError, TypeError):
                keys = '"copy", "nearest_neighbour" and "signature"'
                raise ValueError(f"{options.baselines}: not JSON with {keys}") from None
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    if options.markdown:
        print(markdown(runs, baselines), end="")
    else:
        show(runs, baselines, Console(highlight=False))
    below = [path for path in runs if runs[path]["bleu"]["averaged"] < (options.at_least or 0)]
    for path in below:
        print(f"{path}: BLEU {runs[path]['bleu']['averaged']:.2f} is below {options.at_least:g}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
