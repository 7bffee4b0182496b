"""The results of a study as files: STUDY/results.json and the tables of results.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .. import records
from ..console import markdown as escaped
from ..evaluation import layout
from ..files import sha256, write_text
from ..runs.training_log import EXPLODED
from ..scoring import kinds
from . import archive, plots
from .kept import Note
from .plan import Study
from .results import Comparison, Row, StudyResults, baselines, build_results, other_studies
from .statistics import LEVEL, POWER, Effect

VERDICTS = ("Better", "Worse", "No measurable difference", "Not tested", "Diverged", "Not compared")
EPOCHS = 12  # maximum number of epochs, one per column, in the table of gaps


@dataclass(frozen=True)
class StudyTable:
    """A table of a study; left: number of text columns; plots: names of the plots that show the same numbers."""

    title: str
    headings: Sequence[str]
    rows: list[Sequence[str]]
    left: int
    plots: Sequence[str] = ()


def at_of(at: str) -> str:
    """Describe how the value of the tuned flag was chosen; a fixed value is returned unchanged."""
    return {"own": "own best", "baseline": "baseline's best", "": "recipe's"}.get(at, at)


def interval(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def number(value: float | None, text: str) -> str:
    return "" if value is None else format(value, text)


def probability(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else number(p, ".3f")


def seeds_of(comparison: Comparison) -> str:
    return ", ".join(map(str, comparison.seeds))


EFFECT = ("difference", "95% interval", "p")


def effect_cells(comparison: Comparison, measure: str, digits: int) -> list[str]:
    """Return the cells of an effect: difference, interval, and p or the reason why it is missing."""
    one = comparison.effects.get(measure)
    p = f"none: {comparison.untested}" if comparison.untested else probability(one.p if one else None)
    if one is None:
        return ["", "", p]
    return [f"{one.difference:+.{digits}f}", interval(one.low, one.high, digits), p]


def effect_text(one: Effect, digits: int) -> str:
    """Return a difference and its interval, if any, for one cell."""
    return f"{one.difference:+.{digits}f} {interval(one.low, one.high, digits)}".rstrip()


def visible(one: Effect | None, digits: int) -> str:
    return number(one.visible if one else None, f".{digits}f")


def tables(results: StudyResults) -> list[StudyTable]:
    """Return the non-empty tables of a study."""
    task, main = kinds.of_measure(results.measure), results.measure
    digits = {name: one.digits for name, one in task.studied.measures.items()}
    found = []
    for name in sorted(task.studied.measures, key=lambda name: name != main):
        compared: list[Sequence[str]] = []
        for row in results.rows:
            if row.against is None:
                continue
            cells = [row.setting, row.arm, at_of(row.at), seeds_of(row.against)]
            cells += effect_cells(row.against, name, digits[name])
            if name == main:
                cells += [probability(row.holm), f"{row.family}" if row.family else ""]
            compared.append((*cells, visible(row.against.effects.get(name), digits[name])))
        more = ("Holm p", "family size") if name == main else ()
        headings = ("setting", "arm", "at", "seeds (arm, baseline)", *EFFECT, *more, "smallest detectable")
        shown = ("effects", "settings") if name == main else ()
        found.append(StudyTable(f"{name} minus the baseline's", headings, compared, 4, shown))
        if name == main:
            found.append(scores(results))
    found += [quarters(results), gaps(results)]
    crossed: list[Sequence[str]] = []
    for one in results.interactions:
        cells = [one.arm, at_of(one.at), f"{one.setting} minus {one.than}", seeds_of(one.comparison)]
        cells += effect_cells(one.comparison, main, digits[main])
        crossed.append((*cells, visible(one.comparison.effects.get(main), digits[main])))
    title = f"Interactions: {main} differences between settings (p not corrected)"
    found.append(StudyTable(title, ("arm", "at", "settings", "seeds", *EFFECT, "smallest detectable"), crossed, 4))
    contrasts: list[Sequence[str]] = []
    for contrast in results.contrasts:
        pairs = [" minus ".join(pair) for pair in zip(contrast.groups[::2], contrast.groups[1::2], strict=True)]
        cells = [pairs[0] if len(pairs) == 1 else f"({pairs[0]}) minus ({pairs[1]})", seeds_of(contrast.comparison)]
        for name in task.studied.measures:
            cells += effect_cells(contrast.comparison, name, digits[name])
        contrasts.append(cells)
    headings = ("groups", "seeds", *(head for name in task.studied.measures for head in (name, *EFFECT[1:])))
    found.append(StudyTable("Contrasts (p not corrected)", headings, contrasts, 2))
    tried: list[Sequence[str]] = [
        (
            one.setting,
            one.arm,
            number(one.best, "g"),
            ", ".join(f"{value:g}: {'diverged' if nll is None else f'{nll:.4f}'}" for value, nll in one.tried),
        )
        for one in results.tuned
    ]
    found.append(StudyTable("Tuning: validation NLL", ("setting", "arm", "best", "all values"), tried, 4, ("tuning",)))
    return [without_empty_columns(table) for table in found if table.rows]


def without_empty_columns(table: StudyTable) -> StudyTable:
    """Leave out columns without content, such as those of intervals if there is only one seed."""
    kept = [column for column in range(len(table.headings)) if any(row[column] for row in table.rows)]
    return replace(
        table,
        headings=[table.headings[column] for column in kept],
        rows=[[row[column] for column in kept] for row in table.rows],
        left=sum(column < table.left for column in kept),
    )


def scores(results: StudyResults) -> StudyTable:
    """Return the table of scores of every arm, with its size and the duration of a run."""
    task = kinds.of_measure(results.measure)
    shown = {
        **{name: one.digits for name, one in task.studied.measures.items()},
        **dict.fromkeys(task.studied.shown, 2),
    }
    columns = [(task.studied.best, name, name, count) for name, count in shown.items()]
    # Scores of the last checkpoint and of the study's additional averages.
    models = dict.fromkeys(model for row in results.rows for model in row.means if model != task.studied.best)
    columns += [
        (
            model,
            results.measure,
            f"{results.measure}, {'last checkpoint' if model == 'last' else model}",
            shown[results.measure],
        )
        for model in models
    ]
    rows: list[Sequence[str]] = []
    for row in results.rows:
        seeds = f"{len(row.seeds)}" + (f" of {row.planned}" if len(row.seeds) < row.planned else "")
        seeds += f", {len(row.diverged)} diverged" if row.diverged else ""
        cells = [row.setting, row.arm, at_of(row.at), number(row.value, "g"), seeds]
        cells += [number(row.parameters, ","), number(row.hours, ".2f")]
        of = [row.means.get(model, {}).get(name) for model, name, _, _ in columns]
        for mean, (*_, count) in zip(of, columns, strict=True):
            fewer = f" ({mean.count} of {len(row.seeds)} seeds)" if mean and mean.count < len(row.seeds) else ""
            cells.append(f"{mean.text(count)}{fewer}" if mean else "")
        rows.append(cells)
    headings = ("setting", "arm", "at", "value", "seeds", "parameters", "hours per run")
    return StudyTable("Scores", (*headings, *(heading for _, _, heading, _ in columns)), rows, 5)


def quarters(results: StudyResults) -> StudyTable:
    """Return the table of differences from the baseline by difficulty."""
    measures = kinds.of_measure(results.measure).studied.measures
    rows: list[Sequence[str]] = []
    for row in results.rows:
        for name, measure in measures.items():
            found = [one.effects.get(name) for one in row.quarters]
            if any(found):  # a quarter has no effect if it has too few sentences
                cells = [effect_text(one, measure.digits) if one else "" for one in found]
                rows.append((row.setting, row.arm, at_of(row.at), name, *cells, *[""] * (4 - len(cells))))
    headings = ("setting", "arm", "at", "measure", "easiest quarter", "second", "third", "hardest quarter")
    return StudyTable("Differences from the baseline, by difficulty", headings, rows, 4)


def gaps(results: StudyResults) -> StudyTable:
    """Return the table of validation differences from the baseline by epoch."""
    task = kinds.of_measure(results.measure)
    last = max((epoch for row in results.rows for epoch, _ in row.gap), default=0)
    step = -(-last // EPOCHS) if last else 1
    epochs = list(range(last, 0, -step))[::-1]
    rows: list[Sequence[str]] = [
        (row.setting, row.arm, at_of(row.at), *(number(dict(row.gap).get(epoch), "+.3f") for epoch in epochs))
        for row in results.rows
        if row.gap
    ]
    title = f"{task.studied.curve.replace('valid', 'Validation')} minus the baseline's, by epoch"
    return StudyTable(title, ("setting", "arm", "at", *map(str, epochs)), rows, 3, ("gap", "curves"))


def verdict(results: StudyResults, row: Row) -> tuple[str, str]:
    """Return one of VERDICTS on an arm, and the arm with its difference from the baseline."""
    if not row.seeds:
        return "Diverged", row.arm
    if row.against is None:
        return "Not compared", row.arm
    measure = kinds.of_measure(results.measure).studied.measures[results.measure]
    difference = plots.main_effect(results, row).difference
    shown = f"{difference:+.{measure.digits}f}"
    if row.holm is None:
        return "Not tested", f"{row.arm} ({shown}; {row.against.untested or 'single seed'})"
    if row.holm >= LEVEL:
        return "No measurable difference", f"{row.arm} ({shown})"
    return "Better" if (difference < 0) == measure.is_less_better else "Worse", f"{row.arm} ({shown})"


def score_of(results: StudyResults, base: Row | None) -> str:
    """Return a sentence with the baseline's score."""
    task = kinds.of_measure(results.measure)
    mean = base.means.get(task.studied.best, {}).get(results.measure) if base else None
    if base is None or mean is None:
        return f"{results.baseline} has {'diverged' if base and base.diverged else 'not finished'}."
    of = f" ({len(base.seeds)} of {base.planned} seeds)" if len(base.seeds) < base.planned else ""
    return f"{results.baseline} has {results.measure} {mean.text(task.studied.measures[results.measure].digits)}{of}."


def summary(results: StudyResults) -> list[str]:
    """Return sentences that say which arms are better or worse than the baseline, and which runs are missing."""
    best_first = 1 if plots.is_less_better(results.measure) else -1

    def rank(row: Row) -> float:
        return best_first * plots.main_effect(results, row).difference if row.against else 0.0

    groups: dict[tuple[str, str], dict[str, list[str]]] = {(row.setting, row.at): {} for row in results.rows}
    for row in sorted(results.rows, key=rank):
        if row.arm != results.baseline:
            name, shown = verdict(results, row)
            groups[row.setting, row.at].setdefault(name, []).append(shown)
    for one in results.tuned:
        if one.tried and all(nll is None for _, nll in one.tried):
            groups.setdefault((one.setting, "own"), {}).setdefault("Diverged", []).append(f"{one.arm} (in tuning)")
    lines = []
    for (setting, at), verdicts in groups.items():
        where = f"{setting}, {at_of(at)}" if at else setting
        where += " (arms whose own best differs)" if at == "baseline" else ""
        arms = [f"{name}: {', '.join(verdicts[name])}." for name in VERDICTS if name in verdicts]
        score = score_of(results, baselines(results, results.rows, at).get(setting))
        lines.append(" ".join([f"{where}: {score}", *(arms or ["No other arm has finished."])]))
    if results.exploded:
        lines.append(f"The gradient exploded: {'; '.join(f'{name} ({it})' for name, it in results.exploded.items())}.")
    # The name of a run starts with its setting and arm.
    missing = Counter(" ".join(name.split(".")[:2]) for name in results.missing)
    counts = [f"{count} {'run' if count == 1 else 'runs'} of {what}" for what, count in missing.items()]
    counts += [f"{results.unnamed} that depend on tuning"] if results.unnamed else []
    lines.append(f"Missing: {', '.join(counts)}." if counts else "No runs are missing.")
    return lines


def notes(results: StudyResults) -> list[str]:
    """Return the notes that explain the tables."""
    task = kinds.of_measure(results.measure)
    where: dict[str, list[str]] = {}
    for measure, tests in results.tests.items():
        together = " taken together" if len(tests) > 1 else ""
        count = f", {results.sentences[measure]:,} {task.words.examples}" if results.sentences[measure] else ""
        where.setdefault(f"{', '.join(tests)}{together}{count}", []).append(measure)
    of = [f"{text} ({', '.join(names)})" if len(where) > 1 else text for text, names in where.items()]
    reasons = ["a group has a single seed", "a training run diverged"]
    if task.studied.floor is not None:
        reasons.append(f"a run did not train ({task.studied.floor[0]} below {task.studied.floor[1]:g})")
    families = "with the flags of the recipe"
    if any(row.at for row in results.rows):
        families = (
            "at one choice of the tuned value (own best, baseline's best, or a fixed value). An arm whose own best "
            "value is the baseline's belongs to both families"
        )
    of_examples, test_sets = task.words.examples, ", ".join(results.tests[results.measure])
    lines = [
        f"Test sets: {'; '.join(of)}. Measure, fixed before the runs: {results.measure}. Baseline: {results.baseline}.",
        *(f"{name}: {signature}." for name, signature in results.signatures.items()),
        f"Scores are mean ± standard deviation over seeds, of the {task.studied.best} model.",
        f"Differences use all seeds of both groups. Intervals and p both come from one variance over seeds, "
        f"{task.words.examples} and their interaction, with Satterthwaite's degrees of freedom.",
        f"There is no interval and no p if {', '.join(reasons[:-1])} or {reasons[-1]}.",
        f"Better and worse: the Holm-corrected p is below {LEVEL:g}. No measurable difference: it is not; a difference "
        "may still exist.",
        f"By difficulty: the {of_examples} of {test_sets} are ordered by NLL per "
        f"{task.words.prediction}, the mean of arm and baseline, and divided into four equal parts.",
        "Holm's correction covers one family of tests at a time: all arms compared with the baseline in one setting, "
        f"{families}.",
        f"Smallest detectable: about the smallest true difference that would be found with {POWER:.0%} power at the "
        f"{LEVEL:.0%} level.",
    ]
    if results.exploded:
        lines.append(
            f"The gradient of a run exploded if a norm in its log, a mean over a log interval, is more than {EXPLODED} "
            "times the median of all norms in the log."
        )
    if results.machines:
        made = "; ".join(f"{what}: {n} {'run' if n == 1 else 'runs'}" for what, n in results.machines.items())
        lines.append(
            "Hours per run include training steps, evaluation and, for some runs, analysis, but neither validation nor "
            f"saving. Machines: {made}."
        )
    if results.without_data:
        number_of = len(results.without_data)
        which, its = ("1 run has", "its") if number_of == 1 else (f"{number_of} runs have", "their")
        lines.append(f"{which} no data fingerprint, so {its} data was not checked: {', '.join(results.without_data)}.")
    if any("/" in group for contrast in results.contrasts for group in contrast.groups):
        lines.append("STUDY/NAME is a run or an arm of another study in the same folder.")
    if results.archive:
        lines.append(f"The archive of the kept runs has the SHA-256 {results.archive}.")
    return lines


def markdown(results: StudyResults, drawn: Sequence[str] = ()) -> str:
    """Return the tables as a Markdown page; drawn: names of the plots in the same folder."""
    shown = tables(results)
    placed = {plot for table in shown for plot in table.plots}
    images = {plot: f"![{plots.CAPTIONS[plot]}]({plot}.svg)\n" for plot in drawn}
    blocks = [f"# {escaped(results.title)}\n", bullets(summary(results))]
    for table in shown:
        blocks.append(f"## {table.title}\n")
        blocks += [images[plot] for plot in table.plots if plot in images]
        blocks.append(layout.markdown(table.headings, table.rows, [], table.left).rstrip("\n") + "\n")
    blocks += [image for plot, image in images.items() if plot not in placed]
    return "\n".join([*blocks, "## How to read this page\n", bullets(notes(results))])


def bullets(lines: Sequence[str]) -> str:
    return "".join(f"- {escaped(line)}\n" for line in lines)


def write_results(study: Study, file: Path, notes: Mapping[str, Note], folder: Path) -> list[Path]:
    """Write results.json, results.md and the plots of a study file into `folder`; return their paths."""
    runs, packed = archive.runs_folder(folder), archive.archive_file(folder)
    found = build_results(study, notes, runs, other_studies(study, file, notes))
    if runs != folder:
        found = replace(found, archive=sha256(packed))
    drawn = plots.draw_study(study, found, runs, folder)
    records.write(folder / "results.json", asdict(found))
    write_text(folder / "results.md", markdown(found, [path.stem for path in drawn]))
    return [folder / "results.json", folder / "results.md", *drawn]
