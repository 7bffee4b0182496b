"""The plots of a study: effects, effects by setting, gap by epoch, tuning and training curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import curves
from ..analysis.style import COLOURS, MARKS, figure, plain
from ..runs.run import Run
from ..scoring import kinds
from .plan import Planned, Study
from .results import Row, StudyResults, across, values_chosen
from .statistics import Effect

# In inches: at the width of a phone, letters are still 10 pixels high.
WIDTH = 4.8
LEGEND = "dot and line: difference and 95% interval\nsmall dots: seeds, their number in brackets"
CAPTIONS = {
    "effects": "Difference of each arm from the baseline, with 95% intervals; small dots are seeds",
    "settings": "Difference of each arm from the baseline, by setting",
    "gap": "Validation curve of each arm minus the baseline's, by epoch",
    "curves": "Training and validation curves; bands span the seeds",
    "tuning": "Validation NLL in tuning, and the difference from the baseline at the same value",
}


def value_of(at: str) -> str:
    """Return the suffix of an arm's label that describes the value of its tuned flag."""
    return {"own": "", "baseline": ", baseline's value", "": ""}.get(at, f", {at}")


def look(study: Study, arm: str) -> dict[str, Any]:
    """Return the colour and marker of an arm: unique, and the same in every plot.

    When all colours have been used, they are repeated with hollow markers.
    """
    turn, colour = divmod(list(study.arms).index(arm), len(COLOURS))
    mark = MARKS[(colour + turn) % len(MARKS)]
    return {"color": COLOURS[colour], "marker": mark, "markerfacecolor": "white" if turn else COLOURS[colour]}


def compared(results: StudyResults) -> list[Row]:
    return [row for row in results.rows if row.against]


def main_effect(results: StudyResults, row: Row) -> Effect:
    assert row.against is not None
    return row.against.effects[results.measure]


def is_less_better(measure: str) -> bool:
    return kinds.of_measure(measure).studied.measures[measure].is_less_better


def direction(results: StudyResults) -> str:
    return "lower is better" if is_less_better(results.measure) else "higher is better"


def effects(results: StudyResults, path: Path) -> None:
    """Plot the difference of every arm and of each of its seeds from the baseline, with intervals.

    Each setting, and each fixed value of the tuned flag in it, has its own panel and scale. Each panel shows the
    baseline's seeds first.
    """
    panels: dict[str, list[Row]] = {}
    for row in compared(results):
        at = "own" if row.at == "baseline" else row.at
        base = next(
            one for one in results.rows if (one.setting, one.arm, one.at) == (row.setting, results.baseline, at)
        )
        panels.setdefault(f"{row.setting}{value_of(at)}", [base]).append(row)
    counts = [len(rows) for rows in panels.values()]
    height = (1.2 + 0.5 * len(panels) + 0.3 * sum(counts)) / len(panels)
    with figure(path, len(panels), size=(WIDTH, height), gridspec_kw={"height_ratios": counts}) as axes:
        for axis, (title, rows) in zip(axes[:, 0], panels.items(), strict=True):
            center = float(np.mean(rows[0].by_seed))
            for place, row in enumerate(rows):
                colour = COLOURS[0] if row.against else "#666666"
                # Seeds are drawn a little below the mean, so that neither hides the other.
                seeds = [value - center for value in row.by_seed]
                axis.plot(seeds, [place + 0.22] * len(seeds), ".", color=colour, markersize=5, alpha=0.7)
                if row.against is None:
                    continue
                one = main_effect(results, row)
                if one.low is not None:
                    axis.plot([one.low, one.high], [place, place], color=colour, linewidth=1.5)
                axis.plot(one.difference, place, "o", color=colour, markersize=5)
                if row.against.untested:
                    label = f"no interval: {row.against.untested}"
                    axis.annotate(label, (one.difference, place), (8, -3), textcoords="offset points")
            axis.axvline(0, color="black", linewidth=0.8)
            marks = ["" if row.at != "baseline" else value_of(row.at) for row in rows]  # the title shows a fixed value
            labels = [f"{row.arm}{value} ({len(row.seeds)})" for row, value in zip(rows, marks, strict=True)]
            axis.set_yticks(range(len(rows)), labels)
            axis.set_ylim(len(rows) - 0.4, -0.6)
            axis.set_title(title, loc="left")
        axis.set_xlabel(f"{results.measure} minus the mean of {results.baseline}\n{direction(results)}")
        axis.figure.suptitle(LEGEND, size=9)


def gap(study: Study, results: StudyResults, path: Path) -> bool:
    """Plot the validation curve of every arm minus the baseline's, with a panel for each setting."""
    panels: dict[str, list[Row]] = {}
    for row in compared(results):
        if len(row.gap) > 1:
            panels.setdefault(row.setting, []).append(row)
    if not panels:
        return False
    with figure(path, len(panels), size=(WIDTH, 2.6)) as axes:
        for axis, (setting, rows) in zip(axes[:, 0], panels.items(), strict=True):
            for row in rows:
                style = {"linewidth": 1.2, "linestyle": "--" if row.at == "baseline" else "-", "markersize": 4}
                label = f"{row.arm}{value_of(row.at)}"
                axis.plot(*zip(*row.gap, strict=True), label=label, **style, **look(study, row.arm))
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_title(setting, loc="left")
            axis.set_ylabel(f"{study.task.studied.curve.replace('valid', 'validation')}\nminus {results.baseline}'s")
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel("epoch")
        lines = {line.get_label(): line for each in axes[:, 0] for line in each.get_lines()[:-1]}
        axis.figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, fontsize=9, handlelength=3)
    return True


def by_setting(study: Study, results: StudyResults, path: Path) -> bool:
    """Plot the difference of each arm by setting, at its own value, at the baseline's and at fixed values.

    Settings in which an arm or the baseline diverged or did not train are omitted: the difference there was not tested,
    and may be larger by an order of magnitude.
    """
    series = [(arm, at, across(study, results.rows, arm, at)) for at in values_chosen(study) for arm in study.arms]
    tested = [
        (arm, at, {setting: row for setting, row in rows.items() if row.against and not row.against.untested})
        for arm, at, rows in series
    ]
    drawn = [(arm, at, rows) for arm, at, rows in tested if len(rows) > 1]
    if not drawn:
        return False
    settings = [name for name in study.settings if any(name in rows for *_, rows in drawn)]
    with figure(path, size=(7.0, 3.2)) as axes:
        axis = axes[0, 0]
        for index, (arm, at, rows) in enumerate(drawn):
            shift = (index - (len(drawn) - 1) / 2) * 0.03
            x = [settings.index(setting) + shift for setting in rows]
            found = [main_effect(results, row) for row in rows.values()]
            errors = [
                [0.0 if one.low is None else one.difference - one.low for one in found],
                [0.0 if one.high is None else one.high - one.difference for one in found],
            ]
            y = [one.difference for one in found]
            style = {"linewidth": 1.2, "linestyle": "--" if at == "baseline" else "-", **look(study, arm)}
            axis.errorbar(x, y, yerr=errors, label=f"{arm}{value_of(at)}", capsize=3, **style)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(settings)), settings)
        axis.set_xlim(-0.5, len(settings) - 0.5)
        axis.set_ylabel(f"{results.measure} minus {results.baseline}'s")
        axis.set_title(f"{direction(results)}; bars: 95% intervals")
        axis.figure.legend(loc="outside lower center", ncols=3, fontsize=8, handlelength=4)
    return True


def tuning(study: Study, results: StudyResults, path: Path) -> None:
    """Plot the validation NLL by value of the tuned flag, and the difference from the baseline at the same value."""
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
                axis.set_xlabel(plain(flag))
            left.set_ylabel("validation NLL, nats")
            right.set_ylabel(f"minus {study.baseline}'s")
            left.set_title(f"{setting}, tuning runs")
            right.set_title("at the same value")
        lines = {line.get_label(): line for left in axes[:, 0] for line in left.get_lines()}
        lines = {arm: lines[arm] for arm in study.arms if arm in lines}
        axes[0, 0].figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, fontsize=8)


def learning(study: Study, results: StudyResults, kept: Path, path: Path) -> bool:
    """Plot the curves of every arm in the setting with the most runs, except at the baseline's value.

    Bands span the seeds.
    """
    found: dict[str, list[curves.Curves]] = {}
    settings = [row.setting for row in results.rows if row.at != "baseline" for _ in row.seeds]
    if not settings:
        return False
    setting = max(dict.fromkeys(settings), key=settings.count)
    for row in results.rows:
        if row.setting == setting and row.at != "baseline":
            runs = [Run(kept / Planned(setting, row.arm, row.value, seed).name) for seed in row.seeds]
            if read := [curves.read_curves(run) for run in runs]:
                found[f"{setting} {row.arm}{value_of(row.at)}, {len(read)} seeds"] = read
    curves.draw_curves(found, path)
    return bool(found)


def draw_study(study: Study, results: StudyResults, kept: Path, folder: Path) -> list[Path]:
    """Draw every plot that has data into a folder; return their paths. kept: folder of the kept runs."""
    drawn = []
    if compared(results):
        effects(results, folder / "effects.svg")
        drawn.append(folder / "effects.svg")
        if by_setting(study, results, folder / "settings.svg"):
            drawn.append(folder / "settings.svg")
    if results.tuned:
        tuning(study, results, folder / "tuning.svg")
        drawn.append(folder / "tuning.svg")
    if gap(study, results, folder / "gap.svg"):
        drawn.append(folder / "gap.svg")
    if learning(study, results, kept, folder / "curves.svg"):
        drawn.append(folder / "curves.svg")
    return drawn
