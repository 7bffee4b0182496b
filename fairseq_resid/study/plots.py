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
from .results import Results, Row, baseline_of, choices_of_value, compared_at

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


def label_of(row: Row, at: str) -> str:
    return row["arm"] + {"own": "", "baseline": ", baseline's value", "": ""}.get(at, f", {at}")


def look(study: Study, arm: str) -> dict[str, Any]:
    """Return the colour and marker of an arm: unique, and the same in every plot.

    When all colours have been used, they are repeated with hollow markers.
    """
    turn, colour = divmod(list(study.arms).index(arm), len(COLOURS))
    mark = MARKS[(colour + turn) % len(MARKS)]
    return {"color": COLOURS[colour], "marker": mark, "markerfacecolor": "white" if turn else COLOURS[colour]}


def compared(results: Results) -> list[Row]:
    return [row for row in results["rows"] if row["against"]]


def main_effect(results: Results, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = row["against"]["effects"][results["measure"]]
    return found


def is_less_better(measure: str) -> bool:
    return kinds.of_measure(measure).studied.measures[measure].is_less_better


def direction(results: Results) -> str:
    return "lower is better" if is_less_better(results["measure"]) else "higher is better"


def effects(study: Study, results: Results, path: Path) -> bool:
    """Plot the difference of every arm and of each of its seeds from the baseline, with intervals.

    Each setting, and each fixed value of the tuned flag in it, has its own panel and scale. Each panel shows the
    baseline's seeds first.
    """
    panels: dict[str, list[Row]] = {}
    for row in compared(results):
        base = baseline_of(results["rows"], study.baseline, row["setting"], row["at"])
        assert base is not None
        fixed = f", {base['at']}" if base["at"] not in ("own", "") else ""
        panels.setdefault(f"{row['setting']}{fixed}", [base]).append(row)
    if not panels:
        return False
    counts = [len(rows) for rows in panels.values()]
    height = (1.2 + 0.5 * len(panels) + 0.3 * sum(counts)) / len(panels)
    with figure(path, len(panels), size=(WIDTH, height), gridspec_kw={"height_ratios": counts}) as axes:
        for axis, (title, rows) in zip(axes[:, 0], panels.items(), strict=True):
            center = float(np.mean(rows[0]["by_seed"]))
            for place, row in enumerate(rows):
                colour = COLOURS[0] if row["against"] else "#666666"
                # Seeds are drawn a little below the mean, so that neither hides the other.
                seeds = [value - center for value in row["by_seed"]]
                axis.plot(seeds, [place + 0.22] * len(seeds), ".", color=colour, markersize=5, alpha=0.7)
                if row["against"] is None:
                    continue
                one = main_effect(results, row)
                if one["low"] is not None:
                    axis.plot([one["low"], one["high"]], [place, place], color=colour, linewidth=1.5)
                axis.plot(one["difference"], place, "o", color=colour, markersize=5)
                if reason := row["against"]["untested"]:
                    label = f"no interval: {reason}"
                    axis.annotate(label, (one["difference"], place), (8, -3), textcoords="offset points")
            axis.axvline(0, color="black", linewidth=0.8)
            # The title shows a fixed value.
            names = [label_of(row, row["at"] if row["at"] == "baseline" else "") for row in rows]
            labels = [f"{name} ({len(row['seeds'])})" for name, row in zip(names, rows, strict=True)]
            axis.set_yticks(range(len(rows)), labels)
            axis.set_ylim(len(rows) - 0.4, -0.6)
            axis.set_title(title, loc="left")
        axis.set_xlabel(f"{results['measure']} minus the mean of {study.baseline}\n{direction(results)}")
        axis.figure.suptitle(LEGEND, size=9)
    return True


def gap(study: Study, results: Results, path: Path) -> bool:
    """Plot the validation curve of every arm minus the baseline's, with a panel for each setting."""
    panels: dict[str, list[Row]] = {}
    for row in compared(results):
        if len(row["gap"]) > 1:
            panels.setdefault(row["setting"], []).append(row)
    if not panels:
        return False
    with figure(path, len(panels), size=(WIDTH, 2.6)) as axes:
        for axis, (setting, rows) in zip(axes[:, 0], panels.items(), strict=True):
            for row in rows:
                style = {"linewidth": 1.2, "linestyle": "--" if row["at"] == "baseline" else "-", "markersize": 4}
                label = label_of(row, row["at"])
                axis.plot(*zip(*row["gap"], strict=True), label=label, **style, **look(study, row["arm"]))
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_title(setting, loc="left")
            axis.set_ylabel(f"{study.task.studied.curve.replace('valid', 'validation')}\nminus {study.baseline}'s")
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel("epoch")
        lines = {line.get_label(): line for each in axes[:, 0] for line in each.get_lines()[:-1]}
        axis.figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, fontsize=9, handlelength=3)
    return True


def by_setting(study: Study, results: Results, path: Path) -> bool:
    """Plot the difference of each arm by setting, at its own value, at the baseline's and at fixed values.

    Settings in which an arm or the baseline diverged or did not train are omitted: the difference there was not tested,
    and may be larger by an order of magnitude.
    """
    series = []
    for at in choices_of_value(study):
        tested = [row for row in compared_at(results["rows"], study.baseline, at) if not row["against"]["untested"]]
        of_arms = [(at, [row for row in tested if row["arm"] == arm]) for arm in study.arms]
        series += [(at, rows) for at, rows in of_arms if len(rows) > 1]
    if not series:
        return False
    settings = [name for name in study.settings if any(row["setting"] == name for _, rows in series for row in rows)]
    with figure(path, size=(7.0, 3.2)) as axes:
        axis = axes[0, 0]
        for index, (at, rows) in enumerate(series):
            shift = (index - (len(series) - 1) / 2) * 0.03
            x = [settings.index(row["setting"]) + shift for row in rows]
            found = [main_effect(results, row) for row in rows]
            errors = [
                [0.0 if one["low"] is None else one["difference"] - one["low"] for one in found],
                [0.0 if one["high"] is None else one["high"] - one["difference"] for one in found],
            ]
            y = [one["difference"] for one in found]
            style = {"linewidth": 1.2, "linestyle": "--" if at == "baseline" else "-", **look(study, rows[0]["arm"])}
            axis.errorbar(x, y, yerr=errors, label=label_of(rows[0], at), capsize=3, **style)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(settings)), settings)
        axis.set_xlim(-0.5, len(settings) - 0.5)
        axis.set_ylabel(f"{results['measure']} minus {study.baseline}'s")
        axis.set_title(f"{direction(results)}; bars: 95% intervals")
        axis.figure.legend(loc="outside lower center", ncols=3, fontsize=8, handlelength=4)
    return True


def tuning(study: Study, results: Results, path: Path) -> bool:
    """Plot the validation NLL by value of the tuned flag, and the difference from the baseline at the same value."""
    settings = [name for name in study.settings if any(one["setting"] == name for one in results["tuned"])]
    if not settings or study.tuning is None:
        return False
    with figure(path, len(settings), 2, size=(7.5, 2.8)) as axes:
        for (left, right), setting in zip(axes, settings, strict=True):
            here = {one["arm"]: one["tried"] for one in results["tuned"] if one["setting"] == setting}
            base = dict(here.get(study.baseline, ()))
            for arm, values in here.items():
                tried = [(value, nll) for value, nll in values if nll is not None]
                if tried:
                    left.plot(*zip(*tried, strict=True), label=arm, linewidth=1.2, **look(study, arm))
                gains = [(value, nll - other) for value, nll in tried if (other := base.get(value)) is not None]
                if arm != study.baseline and gains:
                    right.plot(*zip(*gains, strict=True), label=arm, linewidth=1.2, **look(study, arm))
            right.axhline(0, color="black", linewidth=0.8)
            ticks = sorted({value for values in here.values() for value, _ in values})
            for axis in (left, right):
                axis.set_xscale("log")
                axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
                axis.set_xticks([], minor=True)
                axis.set_xlabel(plain(study.tuning.flag))
            left.set_ylabel("validation NLL, nats")
            right.set_ylabel(f"minus {study.baseline}'s")
            left.set_title(f"{setting}, tuning runs")
            right.set_title("at the same value")
        lines = {line.get_label(): line for left in axes[:, 0] for line in left.get_lines()}
        lines = {arm: lines[arm] for arm in study.arms if arm in lines}
        axes[0, 0].figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, fontsize=8)
    return True


def learning(study: Study, results: Results, kept: Path, path: Path) -> bool:
    """Plot the curves of every arm in the setting with the most runs, except at the baseline's value.

    Bands span the seeds.
    """
    rows = [row for row in results["rows"] if row["at"] != "baseline" and row["seeds"]]
    settings = [row["setting"] for row in rows for _ in row["seeds"]]
    found: dict[str, list[curves.Curves]] = {}
    for row in rows:
        if row["setting"] == max(dict.fromkeys(settings), key=settings.count):
            names = [Planned(row["setting"], row["arm"], row["value"], seed).name for seed in row["seeds"]]
            label = f"{row['setting']} {label_of(row, row['at'])}, {len(names)} seeds"
            found[label] = [curves.read_curves(Run(kept / name)) for name in names]
    if found:
        curves.draw_curves(found, path)
    return bool(found)


def draw_study(study: Study, results: Results, kept: Path, folder: Path) -> list[Path]:
    """Draw every plot that has data into a folder; return their paths. kept: folder of the kept runs."""
    plots = {"effects": effects, "settings": by_setting, "tuning": tuning, "gap": gap}
    drawn = [folder / f"{name}.svg" for name, draw in plots.items() if draw(study, results, folder / f"{name}.svg")]
    return drawn + [folder / "curves.svg"] * learning(study, results, kept, folder / "curves.svg")
