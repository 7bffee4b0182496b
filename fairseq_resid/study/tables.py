"""The results of a study as files: STUDY/results.json and the tables of results.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import records
from ..console import markdown as escaped
from ..console import signed
from ..evaluation import layout
from ..files import sha256, write_text
from ..runs.training_log import EXPLODED, Explosion
from ..scoring import kinds
from . import archive, plots
from .kept import Note
from .plan import Study
from .results import Results, Row, baseline_of, build_results, other_studies
from .scores import Comparison
from .statistics import LEVEL, POWER

VERDICTS = ("Better", "Worse", "No measurable difference", "Not tested", "Diverged", "Not compared")
EPOCHS = 12  # maximum number of epochs, one per column, in the table of gaps
PLACE = ("setting", "arm", "at")  # the first columns of most tables
EFFECT = ("difference", "95% interval", "p")


@dataclass(frozen=True)
class StudyTable:
    """A table of a study; left: number of text columns; plots: names of the plots that show the same numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int
    plots: Sequence[str] = ()


def at_of(at: str) -> str:
    """Describe how the value of the tuned flag was chosen; a fixed value is returned unchanged."""
    return {"own": "own best", "baseline": "baseline's best", "": "recipe's"}.get(at, at)


def place(row: Row) -> list[str]:
    return [row["setting"], row["arm"], at_of(row["at"])]


def number(value: float | None, text: str) -> str:
    return "" if value is None else format(value, text)


def probability(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else number(p, ".3f")


def seeds_of(comparison: Comparison) -> str:
    return ", ".join(map(str, comparison["seeds"]))


def interval(effect: Mapping[str, Any], digits: int) -> str:
    return "" if effect["low"] is None else f"[{signed(effect['low'], digits)}, {signed(effect['high'], digits)}]"


def mean_text(mean: Mapping[str, Any], digits: int) -> str:
    """Return a mean and its standard deviation."""
    return f"{mean['mean']:.{digits}f}" + ("" if mean["sd"] is None else f" ± {mean['sd']:.{digits}f}")


def effect_cells(comparison: Comparison, measure: str) -> list[str]:
    """Return the cells of an effect: difference, interval, p or the reason why it is missing, smallest detectable."""
    one, digits = comparison["effects"].get(measure), digits_of(measure)
    p = f"none: {comparison['untested']}" if comparison["untested"] else probability(one["p"] if one else None)
    if one is None:
        return ["", "", p, ""]
    return [signed(one["difference"], digits), interval(one, digits), p, number(one["visible"], f".{digits}f")]


def digits_of(measure: str) -> int:
    return kinds.of_measure(measure).studied.measures[measure].digits


def tables(results: Results) -> list[StudyTable]:
    """Return the non-empty tables of a study."""
    main = results["measure"]
    others = [name for name in kinds.of_measure(main).studied.measures if name != main]
    found = [
        differences(results, main),
        scores(results),
        *(differences(results, name) for name in others),
        quarters(results),
        gaps(results),
        interactions(results),
        contrasts(results),
        tuning(results),
    ]
    return [without_empty_columns(table) for table in found if table.rows]


def without_empty_columns(table: StudyTable) -> StudyTable:
    """Leave out columns without content, such as those of intervals if there is only one seed."""
    kept = [column for column in range(len(table.headings)) if any(row[column] for row in table.rows)]
    headings, *rows = [[row[column] for column in kept] for row in (table.headings, *table.rows)]
    return StudyTable(table.title, headings, list(rows), sum(column < table.left for column in kept), table.plots)


def differences(results: Results, name: str) -> StudyTable:
    """Return the table of differences from the baseline in one measure."""
    is_main, rows = name == results["measure"], []
    for row in plots.compared(results):
        *shown, visible = effect_cells(row["against"], name)
        cells = [*place(row), seeds_of(row["against"]), *shown]
        if is_main:
            cells += [probability(row["holm"]), f"{row['family']}" if row["family"] else ""]
        effect = row["against"]["effects"][name]
        pooled, permutation = effect["pooled"], probability(effect["permutation"])
        cells += [visible, *((interval(pooled, digits_of(name)), f"{pooled['freedom']}") if pooled else ("", ""))]
        rows.append([*cells, permutation])
    more = ("Holm p", "family size") if is_main else ()
    further = ("smallest detectable", "95% interval, pooled variance", "pooled df", "permutation p")
    headings = (*PLACE, "seeds (arm, baseline)", *EFFECT, *more, *further)
    return StudyTable(f"{name} minus the baseline's", headings, rows, 4, ("effects", "settings") if is_main else ())


def scores(results: Results) -> StudyTable:
    """Return the table of scores of every arm, with its size and the duration of a run."""
    main, studied = results["measure"], kinds.of_measure(results["measure"]).studied
    digits = {**{name: one.digits for name, one in studied.measures.items()}, **dict.fromkeys(studied.shown, 2)}
    columns = {name: (studied.best, name) for name in digits}
    # Scores of the last checkpoint and of the study's additional averages.
    for model in dict.fromkeys(model for row in results["rows"] for model in row["means"] if model != studied.best):
        columns[f"{main}, {'last checkpoint' if model == 'last' else model}"] = model, main
    rows = []
    for row in results["rows"]:
        done = len(row["seeds"])
        seeds = f"{done}" + (f" of {row['planned']}" if done < row["planned"] else "")
        seeds += f", {len(row['diverged'])} diverged" if row["diverged"] else ""
        cells = [
            *place(row),
            number(row["value"], "g"),
            seeds,
            number(row["parameters"], ","),
            number(row["hours"], ".2f"),
        ]
        for model, name in columns.values():
            mean = row["means"].get(model, {}).get(name)
            fewer = f" ({mean['count']} of {done} seeds)" if mean and mean["count"] < done else ""
            cells.append(f"{mean_text(mean, digits[name])}{fewer}" if mean else "")
        rows.append(cells)
    return StudyTable("Scores", (*PLACE, "value", "seeds", "parameters", "hours per run", *columns), rows, 5)


def quarters(results: Results) -> StudyTable:
    """Return the table of differences from the baseline by difficulty."""
    rows = []
    for row in plots.compared(results):
        for name in kinds.of_measure(results["measure"]).studied.measures:
            cells = [" ".join(effect_cells(quarter, name)[:2]).rstrip() for quarter in row["quarters"]]
            if any(cells):  # a quarter has no effect if there are too few sentences
                rows.append([*place(row), name, *cells])
    headings = (*PLACE, "measure", "easiest quarter", "second", "third", "hardest quarter")
    return StudyTable("Differences from the baseline, by difficulty", headings, rows, 4)


def gaps(results: Results) -> StudyTable:
    """Return the table of validation differences from the baseline by epoch."""
    rows = [row for row in results["rows"] if row["gap"]]
    last = max((epoch for row in rows for epoch, _ in row["gap"]), default=1)
    epochs = range(last, 0, -math.ceil(last / EPOCHS))[::-1]
    shown = [[*place(row), *(number(dict(row["gap"]).get(epoch), "+.3f") for epoch in epochs)] for row in rows]
    curve = kinds.of_measure(results["measure"]).studied.curve.replace("valid", "Validation")
    title = f"{curve} minus the baseline's, by epoch"
    return StudyTable(title, (*PLACE, *map(str, epochs)), shown, 3, ("gap", "curves"))


def interactions(results: Results) -> StudyTable:
    main, rows = results["measure"], []
    for one in results["interactions"]:
        cells = [one["arm"], at_of(one["at"]), f"{one['setting']} minus {one['than']}", seeds_of(one["comparison"])]
        rows.append([*cells, *effect_cells(one["comparison"], main)])
    title = f"Interactions: {main} differences between settings (p not corrected)"
    return StudyTable(title, ("arm", "at", "settings", "seeds", *EFFECT, "smallest detectable"), rows, 4)


def contrasts(results: Results) -> StudyTable:
    measures, rows = kinds.of_measure(results["measure"]).studied.measures, []
    for one in results["contrasts"]:
        if not any(one["comparison"]["seeds"]):
            continue
        first, *rest = [" minus ".join(pair) for pair in zip(one["groups"][::2], one["groups"][1::2], strict=True)]
        effects = [cell for name in measures for cell in effect_cells(one["comparison"], name)[:3]]
        rows.append([f"({first}) minus ({rest[0]})" if rest else first, seeds_of(one["comparison"]), *effects])
    headings = ("groups", "seeds", *(heading for name in measures for heading in (name, *EFFECT[1:])))
    return StudyTable("Contrasts (p not corrected)", headings, rows, 2)


def tuning(results: Results) -> StudyTable:
    rows = []
    for one in results["tuned"]:
        tried = [f"{value:g}: {'diverged' if nll is None else f'{nll:.4f}'}" for value, nll in one["tried"]]
        rows.append([one["setting"], one["arm"], number(one["best"], "g"), ", ".join(tried)])
    return StudyTable("Tuning: validation NLL", ("setting", "arm", "best", "all values"), rows, 4, ("tuning",))


def verdict(results: Results, row: Row) -> tuple[str, str]:
    """Return one of VERDICTS on an arm, and the arm with its difference from the baseline."""
    if not row["seeds"]:
        return "Diverged", row["arm"]
    if row["against"] is None:
        return "Not compared", row["arm"]
    difference = plots.main_effect(results, row)["difference"]
    shown = f"{row['arm']} ({signed(difference, digits_of(results['measure']))}"
    if row["holm"] is None:
        return "Not tested", f"{shown}; {row['against']['untested'] or 'single seed'})"
    if row["holm"] >= LEVEL:
        return "No measurable difference", f"{shown})"
    return "Better" if (difference < 0) == plots.is_less_better(results["measure"]) else "Worse", f"{shown})"


def score_of(results: Results, base: Row | None) -> str:
    """Return a sentence with the baseline's score."""
    measure, name = results["measure"], results["baseline"]
    mean = base["means"].get(kinds.of_measure(measure).studied.best, {}).get(measure) if base else None
    if base is None or mean is None:
        return f"{name} has {'diverged' if base and base['diverged'] else 'not finished'}."
    done, planned = len(base["seeds"]), base["planned"]
    of = f" ({done} of {planned} seeds)" if done < planned else ""
    return f"{name} has {measure} {mean_text(mean, digits_of(measure))}{of}."


def summary(results: Results) -> list[str]:
    """Return sentences that say which arms are better or worse than the baseline, and which runs are missing."""
    best_first = 1 if plots.is_less_better(results["measure"]) else -1

    def rank(row: Row) -> float:
        return best_first * plots.main_effect(results, row)["difference"] if row["against"] else 0.0

    rows = results["rows"]
    groups: dict[tuple[str, str], dict[str, list[str]]] = {(row["setting"], row["at"]): {} for row in rows}
    for row in sorted(rows, key=rank):
        if row["arm"] != results["baseline"]:
            name, shown = verdict(results, row)
            groups[row["setting"], row["at"]].setdefault(name, []).append(shown)
    for one in results["tuned"]:
        if one["tried"] and all(nll is None for _, nll in one["tried"]):
            of = groups.setdefault((one["setting"], "own"), {})
            of.setdefault("Diverged", []).append(f"{one['arm']} (in tuning)")
    lines = []
    for (setting, at), verdicts in groups.items():
        where = f"{setting}, {at_of(at)}" if at else setting
        where += " (arms whose own best differs)" if at == "baseline" else ""
        arms = [f"{name}: {', '.join(verdicts[name])}." for name in VERDICTS if name in verdicts]
        score = score_of(results, baseline_of(rows, results["baseline"], setting, at))
        lines.append(" ".join([f"{where}: {score}", *(arms or ["No other arm has finished."])]))
    if results["exploded"]:
        exploded = "; ".join(f"{name} ({Explosion(**one)})" for name, one in results["exploded"].items())
        lines.append(f"The gradient exploded: {exploded}.")
    # The name of a run starts with its setting and arm.
    missing = Counter(" ".join(name.split(".")[:2]) for name in results["missing"])
    counts = [f"{count} {'run' if count == 1 else 'runs'} of {what}" for what, count in missing.items()]
    counts += [f"{results['unnamed']} that depend on tuning"] if results["unnamed"] else []
    lines.append(f"Missing: {', '.join(counts)}." if counts else "No runs are missing.")
    return lines


def notes(results: Results) -> list[str]:
    """Return the notes that explain the tables."""
    task, main = kinds.of_measure(results["measure"]), results["measure"]
    where: dict[str, list[str]] = {}
    for measure, tests in results["tests"].items():
        together = " taken together" if len(tests) > 1 else ""
        sentences = results["sentences"][measure]
        count = f", {sentences:,} {task.words.examples}" if sentences else ""
        where.setdefault(f"{', '.join(tests)}{together}{count}", []).append(measure)
    of = [f"{text} ({', '.join(names)})" if len(where) > 1 else text for text, names in where.items()]
    reasons = ["a group has a single seed", "a training run diverged"]
    if task.studied.floor is not None:
        reasons.append(f"a run did not train ({task.studied.floor[0]} below {task.studied.floor[1]:g})")
    families = "with the flags of the recipe"
    if any(row["at"] for row in results["rows"]):
        families = (
            "at one choice of the tuned value (own best, baseline's best, or a fixed value). An arm whose own best "
            "value is the baseline's belongs to both families"
        )
    lines = [
        f"Test sets: {'; '.join(of)}. Measure, fixed before the runs: {main}. Baseline: {results['baseline']}.",
        *(f"{name}: {signature}." for name, signature in results["signatures"].items()),
        f"Scores are mean ± standard deviation over seeds, of the {task.studied.best} model.",
        f"Differences use all seeds of both groups. Intervals and p both come from one variance over seeds, "
        f"{task.words.examples} and their interaction, with Satterthwaite's degrees of freedom.",
        f"There is no interval and no p if {', '.join(reasons[:-1])} or {reasons[-1]}.",
        f"Better and worse: the Holm-corrected p is below {LEVEL:g}. No measurable difference: it is not; a difference "
        "may still exist.",
        f"By difficulty: the {task.words.examples} of {', '.join(results['tests'][main])} are ordered by NLL per "
        f"{task.words.prediction}, the mean of arm and baseline, and divided into four equal parts.",
        "Holm's correction covers one family of tests at a time: all arms compared with the baseline in one setting, "
        f"{families}.",
        f"Smallest detectable: about the smallest true difference that would be found with {POWER:.0%} power at the "
        f"{LEVEL:.0%} level.",
    ]
    effects = [effect for row in plots.compared(results) for effect in row["against"]["effects"].values()]
    if any(effect["pooled"] for effect in effects):
        lines.append(
            "Pooled variance: the interval if one variance over seeds is estimated from all arms of the setting that "
            "trained without divergence. Its degrees of freedom (df) are their seeds minus their number. It assumes "
            "that seeds vary equally in all arms: compare the standard deviations of the scores."
        )
        lines.append(
            "Permutation p: exact, two-sided and not corrected, over all ways to assign the scores of the seeds to arm "
            "and baseline, on the same test sets. It is left out if its smallest possible value is above "
            f"{LEVEL:g}: that is 0.1 for 3 and 3 seeds, 0.029 for 4 and 4 or 3 and 4, and 0.012 for 3 and 6."
        )
    if results["exploded"]:
        lines.append(
            f"The gradient of a run exploded if a norm in its log, a mean over a log interval, is more than {EXPLODED} "
            "times the median of all norms in the log."
        )
    if results["machines"]:
        made = "; ".join(f"{what}: {n} {'run' if n == 1 else 'runs'}" for what, n in results["machines"].items())
        lines.append(
            "Hours per run include training steps, evaluation and, for some runs, analysis, but neither validation nor "
            f"saving. Machines: {made}."
        )
    if lacking := results["without_data"]:
        which, its = ("1 run has", "its") if len(lacking) == 1 else (f"{len(lacking)} runs have", "their")
        lines.append(f"{which} no data fingerprint, so {its} data was not checked: {', '.join(lacking)}.")
    if any("/" in group for contrast in results["contrasts"] for group in contrast["groups"]):
        lines.append("STUDY/NAME is a run or an arm of another study in the same folder.")
    if results["archive"]:
        lines.append(f"The archive of the kept runs has the SHA-256 {results['archive']}.")
    return lines


def markdown(results: Results, drawn: Sequence[str] = ()) -> str:
    """Return the tables as a Markdown page; drawn: names of the plots in the same folder."""
    shown = tables(results)
    placed = {plot for table in shown for plot in table.plots}
    images = {plot: f"![{plots.CAPTIONS[plot]}]({plot}.svg)\n" for plot in drawn}
    blocks = [f"# {escaped(results['title'])}\n", bullets(summary(results))]
    for table in shown:
        blocks.append(f"## {table.title}\n")
        blocks += [images[plot] for plot in table.plots if plot in images]
        blocks.append(layout.markdown(table.headings, table.rows, [], table.left).rstrip("\n") + "\n")
    blocks += [image for plot, image in images.items() if plot not in placed]
    return "\n".join([*blocks, "## How to read this page\n", bullets(notes(results))])


def bullets(lines: Sequence[str]) -> str:
    return "".join(f"- {escaped(line)}\n" for line in lines)


def rounded(value: Any) -> Any:
    """Round all numbers to nine significant digits: those after them depend on the version of NumPy."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def write_results(study: Study, file: Path, notes: Mapping[str, Note], folder: Path) -> list[Path]:
    """Write results.json, results.md and the plots of a study file into `folder`; return their paths."""
    runs, packed = archive.runs_folder(folder), archive.archive_file(folder)
    found = build_results(study, notes, runs, other_studies(study, file, notes))
    if runs != folder:
        found["archive"] = sha256(packed)
    drawn = plots.draw_study(study, found, runs, folder)
    records.write(folder / "results.json", rounded(found))
    write_text(folder / "results.md", markdown(found, [path.stem for path in drawn]))
    return [folder / "results.json", folder / "results.md", *drawn]
