"""The results of a study as files: STUDY/results.json and the tables of results.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .. import records
from ..evaluation import layout
from ..files import sha256, write_text
from ..foreign import markdown as escaped
from ..tasks import kinds
from . import archive, plots
from .kept import Note
from .plan import Study
from .results import Comparison, Row, StudyResults, build_results
from .statistics import LEVEL, POWER, Effect

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
    if one is None:
        return [""] * len(EFFECT)
    p = f"none: {comparison.untested}" if comparison.untested else probability(one.p)
    return [f"{one.difference:+.{digits}f}", interval(one.low, one.high, digits), p]


def visible(one: Effect | None, digits: int) -> str:
    return number(one.visible if one else None, f".{digits}f")


def tables(results: StudyResults) -> list[StudyTable]:
    """Return the non-empty tables of a study."""
    task, main = kinds.of_measure(results.measure), results.measure
    digits = {name: one.digits for name, one in task.measures.items()}
    found = []
    for name in sorted(task.measures, key=lambda name: name != main):
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
    found.append(gaps(results))
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
        for name in task.measures:
            cells += effect_cells(contrast.comparison, name, digits[name])
        contrasts.append(cells)
    headings = ("groups", "seeds", *(head for name in task.measures for head in (name, *EFFECT[1:])))
    found.append(StudyTable("Post-hoc contrasts (p not corrected)", headings, contrasts, 2))
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
    return [table for table in found if table.rows]


def scores(results: StudyResults) -> StudyTable:
    """Return the table of scores of every arm, with its size and the duration of a run."""
    task = kinds.of_measure(results.measure)
    shown = {**{name: one.digits for name, one in task.measures.items()}, **dict.fromkeys(task.shown, 2)}
    columns = [(task.best, name, name, count) for name, count in shown.items()]
    # Scores of the last checkpoint and of the study's additional averages.
    models = dict.fromkeys(model for row in results.rows for model in row.means if model != task.best)
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
    title = f"{task.curve.replace('valid', 'Validation')} minus the baseline's, by epoch"
    return StudyTable(title, ("setting", "arm", "at", *map(str, epochs)), rows, 3, ("gap", "curves"))


def verdict(results: StudyResults, row: Row) -> str:
    """Return the verdict on an arm that was compared with the baseline."""
    if row.holm is None:
        return "Not tested"
    if row.holm >= LEVEL:
        return "No measurable difference"
    difference = plots.main_effect(results, row).difference
    return "Better" if (difference < 0) == plots.is_less_better(results.measure) else "Worse"


def summary(results: StudyResults) -> list[str]:
    """Return sentences that say which arms are better or worse than the baseline, and which runs are missing."""
    main, base = results.measure, results.baseline
    task = kinds.of_measure(main)
    digits = task.measures[main].digits
    groups: dict[tuple[str, str], list[Row]] = {}
    scores: dict[str, str] = {}  # of the baseline in each setting, at its own best value
    for row in results.rows:
        compared = groups.setdefault((row.setting, row.at), [])
        if row.against and main in row.against.effects:
            compared.append(row)
        elif row.arm == base and main in row.means.get(task.best, {}):
            scores.setdefault(row.setting, f"{base} has {main} {row.means[task.best][main].text(digits)}. ")
    lines = []
    for (setting, at), rows in groups.items():
        told: dict[str, list[str]] = {
            name: [] for name in ("Better", "Worse", "No measurable difference", "Not tested")
        }
        for row in sorted(rows, key=lambda row: plots.main_effect(results, row).difference):
            difference = plots.main_effect(results, row).difference
            told[verdict(results, row)].append(f"{row.arm} ({difference:+.{digits}f})")
        verdicts = " ".join(f"{name}: {', '.join(arms)}." for name, arms in told.items() if arms)
        where = f"{setting}, {at_of(at)}" if at else setting
        lines.append(f"{where}: {scores.get(setting, '')}{verdicts or 'No other arm has finished.'}")
    # The name of a run starts with its setting and arm.
    missing = Counter(" ".join(name.split(".")[:2]) for name in results.missing)
    listed = ", ".join(f"{what} ({count})" for what, count in missing.items())
    more = f", and {results.unnamed} that depend on tuning" if results.unnamed else ""
    lines.append(f"Missing runs: {listed}{more}." if missing else "No runs are missing.")
    return lines


def notes(results: StudyResults) -> list[str]:
    """Return the notes that explain the tables."""
    task = kinds.of_measure(results.measure)
    where: dict[str, list[str]] = {}
    for measure, tests in results.tests.items():
        together = " taken together" if len(tests) > 1 else ""
        count = f", {results.sentences[measure]:,} {task.examples}" if results.sentences[measure] else ""
        where.setdefault(f"{', '.join(tests)}{together}{count}", []).append(measure)
    of = [f"{text} ({', '.join(names)})" if len(where) > 1 else text for text, names in where.items()]
    reasons = ["a group has a single seed", "a training run diverged"]
    if task.floor is not None:
        reasons.append(f"a group did not train (mean {task.floor[0]} below {task.floor[1]:g})")
    families = "with the flags of the recipe"
    if results.tuned:
        families = (
            "at one choice of the tuned value (own best, baseline's best, or a fixed value). An arm whose own best "
            "value is the baseline's belongs to both families"
        )
    lines = [
        f"Test sets: {'; '.join(of)}. Measure, fixed before the runs: {results.measure}. Baseline: {results.baseline}.",
        *(f"{name}: {signature}." for name, signature in results.signatures.items()),
        f"Scores are mean ± standard deviation over seeds, of the {task.best} model.",
        f"Differences use all seeds of both groups. Intervals and p both come from one variance over seeds, "
        f"{task.examples} and their interaction, with Satterthwaite's degrees of freedom.",
        f"There is no interval and no p if {', '.join(reasons[:-1])} or {reasons[-1]}.",
        f"Better and worse: the Holm-corrected p is below {LEVEL:g}. "
        "Holm's correction covers one family of tests at a time: all arms compared with the baseline in one setting, "
        f"{families}.",
        f"Smallest detectable: about the smallest true difference that would be found with {POWER:.0%} power at the "
        f"{LEVEL:.0%} level.",
    ]
    if results.machines:
        made = "; ".join(f"{what}: {n} {'run' if n == 1 else 'runs'}" for what, n in results.machines.items())
        lines.append(f"Hours per run are wall-clock hours of training and evaluation. Machines: {made}.")
    if results.without_data:
        number_of = len(results.without_data)
        has = "1 run has" if number_of == 1 else f"{number_of} runs have"
        lines.append(f"{has} no data fingerprint, so their data was not checked: {', '.join(results.without_data)}.")
    if results.archive:
        lines.append(f"The archive of the kept runs has the SHA-256 {results.archive}.")
    return lines


def markdown(results: StudyResults, drawn: Sequence[str] = ()) -> str:
    """Return the tables as a Markdown page; drawn: names of the plots in the same folder."""
    blocks = [f"# {escaped(results.title)}\n", bullets(summary(results))]
    for table in tables(results):
        blocks.append(f"## {table.title}\n")
        blocks += [f"![{plots.CAPTIONS[plot]}]({plot}.svg)\n" for plot in table.plots if plot in drawn]
        blocks.append(layout.markdown(table.headings, table.rows, [], table.left).rstrip("\n") + "\n")
    return "\n".join([*blocks, "## How to read this page\n", bullets(notes(results))])


def bullets(lines: Sequence[str]) -> str:
    return "".join(f"- {escaped(line)}\n" for line in lines)


def write_results(study: Study, notes: Mapping[str, Note], folder: Path) -> list[Path]:
    """Write results.json, results.md and the plots of a study into its folder; return their paths."""
    runs, packed = archive.runs_folder(folder), archive.archive_file(folder)
    found = build_results(study, notes, runs)
    if runs != folder:
        found = replace(found, archive=sha256(packed))
    drawn = plots.draw_study(study, found, runs, folder)
    records.write(folder / "results.json", asdict(found))
    write_text(folder / "results.md", markdown(found, [path.stem for path in drawn]))
    return [folder / "results.json", folder / "results.md", *drawn]
