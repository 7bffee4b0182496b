"""Plot the learning curves of several runs from their train.log files.

    fairseq-resid curves RUN... [--out curves.svg] [--by hours]

Runs that differ only in their seed share one line: their mean, with a band from minimum to maximum.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..cli import frame
from ..console import say
from ..runs.run import Run, distinct_names
from ..runs.training_log import SESSION, drop_later, log_record
from .style import COLOURS, figure, plain

# Quantities to draw: keys in the log record, axis label, conversion factor. fairseq logs losses in bits.
QUANTITIES: dict[str, tuple[tuple[str, ...], str, float]] = {
    "train loss": (("loss", "train_loss"), "train loss, nats", math.log(2)),
    "valid loss": (("valid_loss", "test_loss"), "validation loss, nats", math.log(2)),
    "valid NLL": (("valid_nll_loss",), "validation NLL, nats per token", math.log(2)),
    "BLEU": (("valid_bleu",), "validation BLEU (fairseq)", 1.0),
    "valid error": (("valid_error", "test_error"), "validation error, percent", 1.0),
    "gradient norm": (("gnorm", "train_gnorm"), "gradient norm", 1.0),
    "tokens/s": (("wps", "train_wps"), "target tokens/s, or images/s", 1.0),
}


@dataclass(frozen=True)
class Curves:
    """The curves of one run: for each quantity, its points (updates, seconds since the start, value)."""

    run: str
    points: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)


def read_curves(run: Run) -> Curves:
    """Read a run's train.log, skipping truncated lines.

    If training was restarted from an older checkpoint, the new records replace the old ones from that update
    onwards. Time is taken from the timestamps of the lines, without pauses between sessions, because fairseq's own
    timers restart at 0 when a run is resumed in the middle of an epoch.
    Raises: ValueError if the log has no training records.
    """
    found: dict[str, dict[int, tuple[float, float]]] = {key: {} for keys, _, _ in QUANTITIES.values() for key in keys}
    passed, before = 0.0, None
    for line in run.log_lines():
        stamp = time_of(line)
        if stamp is not None:
            if before is not None and SESSION not in line:
                passed += max(0.0, stamp - before)
            before = stamp
        record = log_record(line)
        updates = next((int(record[key]) for key in record if key.endswith("num_updates")), None) if record else None
        if record is None or updates is None:
            continue
        for key, rows in found.items():
            drop_later(rows, updates)
            value = number(record.get(key))
            if value is not None:
                rows[updates] = (passed, value)
    points = {}
    for name, (keys, _, factor) in QUANTITIES.items():
        # Prefer the records of log intervals; those of epochs are means over a whole epoch.
        rows = next((found[key] for key in keys if found[key]), {})
        if rows:
            points[name] = [(at, seconds, factor * value) for at, (seconds, value) in sorted(rows.items())]
    if not points:
        raise ValueError(f"{run.train_log}: no training records; fairseq writes them with --log-format json")
    return Curves(run.name, points)


def time_of(line: str) -> float | None:
    """Return the timestamp of a log line in seconds, or None if it has none."""
    try:
        return datetime.fromisoformat(line[:19]).timestamp()
    except ValueError:
        return None


def number(value: Any) -> float | None:
    """Return a logged value; None if it is not a finite number, or if it is too large to plot."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def group_by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by label, grouping those that differ only by seed."""
    found: dict[str, list[Run]] = {}
    known: set[tuple[str, str]] = set()
    for run in runs:
        same, seed = run.setting_and_seed()
        if (same, seed) in known:  # a repeated run says nothing about other seeds
            same = str(run.path.resolve())
        known.add((same, seed))
        found.setdefault(same, []).append(run)
    names = distinct_names([alike[0].path for alike in found.values()])
    return {
        name if len(alike) == 1 else f"{name} ({len(alike)} seeds)": alike
        for name, alike in zip(names, found.values(), strict=True)
    }


def by_setting(runs: Sequence[Run], failed: Callable[[Run, ValueError], object]) -> dict[str, list[Curves]]:
    """Return the curves of the runs by label, grouping those that differ only by seed.

    failed: called for a run whose curves cannot be read
    """
    found: dict[str, list[Curves]] = {}
    for label, alike in group_by_setting(runs).items():
        for run in alike:
            try:
                found.setdefault(label, []).append(read_curves(run))
            except ValueError as error:
                failed(run, error)
    return {label: curves for label, curves in found.items() if curves}


def band(curves: Sequence[Curves], name: str, by: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return the x values, mean, minimum and maximum of a quantity at the updates that all runs have logged.

    With by="hours", the x values are means over the runs.
    """
    tables = [{at: (seconds, value) for at, seconds, value in each.points.get(name, ())} for each in curves]
    common = sorted(set.intersection(*map(set, tables)))
    x = [at if by == "updates" else sum(table[at][0] for table in tables) / len(tables) / 3600 for at in common]
    values = [[table[at][1] for table in tables] for at in common]
    return x, [sum(row) / len(row) for row in values], [min(row) for row in values], [max(row) for row in values]


def draw_curves(by_group: dict[str, list[Curves]], path: Path, by: str = "updates") -> None:
    """Draw one panel for each quantity that at least one run has."""
    shown = [name for name in QUANTITIES if any(name in each.points for some in by_group.values() for each in some)]
    with figure(path, math.ceil(len(shown) / 2), 2, panels=len(shown), legend=2) as axes:
        for axis, name in zip(axes.flat, shown, strict=False):
            for index, (label, curves) in enumerate(by_group.items()):
                having = [each for each in curves if name in each.points]
                if not having:
                    continue
                x, mean, least, greatest = band(having, name, by)
                colour = COLOURS[index % len(COLOURS)]
                style = "-" if index < len(COLOURS) else "--"
                axis.plot(
                    x, mean, style, color=colour, label=plain(label), linewidth=1.0, marker="." if len(x) < 12 else ""
                )
                if len(having) > 1:
                    axis.fill_between(x, least, greatest, color=colour, alpha=0.2, linewidth=0)
            axis.set_ylabel(QUANTITIES[name][1])
            axis.set_xlabel("updates" if by == "updates" else "hours")
            if name == "gradient norm":
                axis.set_yscale("log")


@frame.command("curves", "Plot the learning curves of several runs from their logs, with a band over seeds.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run `fairseq-resid curves`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    add(
        "--out", type=Path, default=Path("curves.svg"), metavar="FILE", help="svg, png or pdf file (default curves.svg)"
    )
    add("--by", choices=("updates", "hours"), default="updates", help="unit of the x axis (default updates)")
    options = parser.parse_intermixed_args(argv)
    for path in options.runs:
        Run(path).require()
    failed: list[str] = []
    curves = by_setting([Run(path) for path in dict.fromkeys(options.runs)], lambda _, error: failed.append(str(error)))
    for error in failed:
        say(f"{parser.prog}: warning: {error}", file=sys.stderr)
    if not curves:
        raise ValueError("no curves to draw: none of the runs has training records in its train.log")
    draw_curves(curves, options.out, options.by)
    say(f"{options.out}: lines: {len(curves)}, runs: {sum(map(len, curves.values()))}")
    return 1 if failed else 0
