"""The plots of a study: effects, gain by setting, tuning, curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import curves
from ..analysis.style import COLOURS, MARKS, figure
from ..folders.run import Run
from . import measures
from .plan import Planned, Study
from .results import Results, Row, across

VALUE = {"own": "", "baseline": ", the baseline's value", "": ""}


def look(study: Study, arm: str) -> dict[str, Any]:
    """Return colour and mark of an arm, the same in every plot and no other arm's; after one round marks are hollow."""
    turn, colour = divmod(list(study.arms).index(arm), len(COLOURS))
    mark = MARKS[(colour + turn) % len(MARKS)]
    return {"color": COLOURS[colour], "marker": mark, "markerfacecolor": "white" if turn else COLOURS[colour]}


def seeds_of(row: Row) -> str:
    return f"{row.compared}, {row.lost} diverged" if row.lost else str(row.compared)


def compared(results: Results) -> list[Row]:
    return [row for row in results.rows if row.against]


def is_less_better(measure: str) -> bool:
    return measures.kind(measure).measures[measure].is_less_better


def direction(results: Results) -> str:
    return "less is better" if is_less_better(results.measure) else "more is better"


def effects(results: Results, path: Path) -> None:
    """Draw the difference from the baseline of every arm with its intervals, a panel with its own scale a setting."""
    panels: dict[str, list[Row]] = {}
    for row in compared(results):
        panels.setdefault(row.setting, []).append(row)
    counts = [len(rows) for rows in panels.values()]
    height = (0.8 + 0.4 * len(panels) + 0.3 * sum(counts)) / len(panels)
    with figure(path, len(panels), size=(7.0, height), gridspec_kw={"height_ratios": counts}) as axes:
        for axis, (setting, rows) in zip(axes[:, 0], panels.items(), strict=True):
            for place, row in enumerate(rows):
                one = row.against[results.measure]
                if one.low is not None:
                    axis.plot([one.boot_low, one.boot_high], [place, place], color=COLOURS[5], linewidth=6, alpha=0.6)
                    axis.plot([one.low, one.high], [place, place], color=COLOURS[0], linewidth=1.5)
                axis.plot(one.difference, place, "o", color=COLOURS[0])
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_yticks(range(len(rows)), [f"{row.arm}{VALUE[row.at]} ({seeds_of(row)})" for row in rows])
            axis.set_ylim(len(rows) - 0.5, -0.5)
            axis.set_title(setting, loc="left")
        axis.set_xlabel(f"{results.measure} less {results.baseline}'s, {direction(results)}; seeds in brackets")
        axis.figure.suptitle("line: 95% over seeds (Welch); band: 95% over seeds and sentences (bootstrap)", size=9)


def by_setting(study: Study, results: Results, path: Path) -> bool:
    """Draw how the difference of each arm changes over its settings, at its own value and at the baseline's."""
    settings = [name for name in study.settings if any(row.setting == name for row in compared(results))]
    series = [(arm, at, across(study, results.rows, arm, at)) for at in ("own", "", "baseline") for arm in study.arms]
    drawn = [(arm, at, rows) for arm, at, rows in series if len(rows) > 1]
    if not drawn:
        return False
    with figure(path, size=(7.0, 3.2)) as axes:
        axis = axes[0, 0]
        for index, (arm, at, rows) in enumerate(drawn):
            shift = (index - (len(drawn) - 1) / 2) * 0.03
            x = [settings.index(setting) + shift for setting in rows]
            found = [row.against[results.measure] for row in rows.values()]
            errors = [
                [0.0 if one.low is None else one.difference - one.low for one in found],
                [0.0 if one.high is None else one.high - one.difference for one in found],
            ]
            y = [one.difference for one in found]
            style = {"linewidth": 1.2, "linestyle": "--" if at == "baseline" else "-", **look(study, arm)}
            axis.errorbar(x, y, yerr=errors, label=f"{arm}{VALUE[at]}", capsize=3, **style)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(settings)), settings)
        axis.set_xlim(-0.5, len(settings) - 0.5)
        axis.set_ylabel(f"{results.measure} less {results.baseline}'s")
        # Where a baseline fails to train its difference is larger by an order of magnitude than those to be compared.
        differences = [row.against[results.measure].difference for *_, rows in drawn for row in rows.values()]
        linear = np.median(np.abs(differences)) or 1.0
        axis.set_yscale("symlog", linthresh=linear)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(f"{direction(results)}; bars: 95% over seeds; logarithmic beyond ±{linear:.2g}")
        axis.figure.legend(loc="outside lower center", ncols=3, fontsize=8, handlelength=4)
    return True


def tuning(study: Study, results: Results, path: Path) -> None:
    """Draw the NLL on the valid set by the tuned flag, and the difference from the baseline at the same value."""
    settings = [name for name in study.settings if any(one.setting == name for one in results.tuned)]
    flag = study.tuning.flag if study.tuning else ""
    with figure(path, len(settings), 2, size=(7.5, 2.8)) as axes:
        for (left, right), setting in zip(axes, settings, strict=True):
            here = {one.arm: one for one in results.tuned if one.setting == setting}
            base = dict(here[study.baseline].tried) if study.baseline in here else {}
            for arm, one in here.items():
                tried = [(value, nll) for value, nll in one.tried if nll is not None]
                if tried:
                    left.plot(*zip(*tried, strict=True), label=arm, linewidth=1.2, **look(study, arm))
                gains = [(value, nll - other) for value, nll in tried if (other := base.get(value)) is not None]
                if arm != study.baseline and gains:
                    right.plot(*zip(*gains, strict=True), label=arm, linewidth=1.2, **look(study, arm))
            right.axhline(0, color="black", linewidth=0.8)
            values = sorted({value for one in here.values() for value, _ in one.tried})
            for axis in (left, right):
                axis.set_xscale("log")
                axis.set_xticks(values, [f"{value:g}" for value in values])
                axis.set_xticks([], minor=True)
                axis.set_xlabel(flag)
            left.set_ylabel("valid NLL, nats")
            right.set_ylabel(f"less {study.baseline}'s")
            left.set_title(f"{setting}, tuning runs")
            right.set_title("at the same value")
        lines = {line.get_label(): line for left in axes[:, 0] for line in left.get_lines()}
        lines = {arm: lines[arm] for arm in study.arms if arm in lines}
        axes[0, 0].figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, fontsize=8)


def learning(study: Study, results: Results, kept: Path, path: Path) -> bool:
    """Draw the curves of every arm at its own value in the setting with most runs; seeds are a band."""
    found: dict[str, list[curves.Curves]] = {}
    settings = [row.setting for row in results.rows if row.at != "baseline" for _ in row.seeds]
    if not settings:
        return False
    setting = max(dict.fromkeys(settings), key=settings.count)
    for row in results.rows:
        if row.setting == setting and row.at != "baseline":
            runs = [Run(kept / Planned(setting, row.arm, row.value, seed).name) for seed in row.seeds]
            if read := [curves.read(run) for run in runs]:
                found[f"{setting} {row.arm}, {len(read)} seeds"] = read
    curves.draw(found, path)
    return bool(found)


def draw(study: Study, results: Results, kept: Path, folder: Path) -> list[Path]:
    """Draw every plot that there are figures for into a folder; return their paths. kept: what is kept of the runs."""
    drawn = []
    if compared(results):
        effects(results, folder / "effects.svg")
        drawn.append(folder / "effects.svg")
        if by_setting(study, results, folder / "settings.svg"):
            drawn.append(folder / "settings.svg")
    if results.tuned:
        tuning(study, results, folder / "tuning.svg")
        drawn.append(folder / "tuning.svg")
    if learning(study, results, kept, folder / "curves.svg"):
        drawn.append(folder / "curves.svg")
    return drawn
