"""What a study found, as tables: STUDY/results.json, results.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..evaluation import layout
from ..folders import records
from ..folders.files import write_text
from . import measures, plots
from .kept import Note
from .plan import Study
from .results import Results, Row, build
from .statistics import LEVEL, POWER, Effect

AT = {"own": "own best", "baseline": "the baseline's best", "": "the recipe's"}
Table = tuple[str, tuple[str, ...], list[tuple[str, ...]], int]


def interval(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def number(value: float | None, text: str) -> str:
    return "" if value is None else format(value, text)


def probability(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else number(p, ".3f")


def seeds_of(row: Row) -> str:
    """Return how many seeds of an arm are compared, and how many are not because a training diverged."""
    return str(row.compared) + (f" ({row.lost} diverged: no p)" if row.lost else "")


def effect_cells(one: Effect | None, digits: int) -> list[str]:
    """Return the cells of an effect: difference, both intervals, p, the smallest effects that could be seen."""
    if one is None:
        return [""] * 5
    visible = number(one.visible, f".{digits}f")
    if one.visible_all is not None:
        visible += f" ({one.visible_all:.{digits}f})"
    return [
        f"{one.difference:+.{digits}f}",
        interval(one.low, one.high, digits),
        interval(one.boot_low, one.boot_high, digits),
        probability(one.p),
        visible,
    ]


def tables(results: Results) -> list[Table]:
    """Return the tables of a study: a title, headings, rows, and how many columns are text."""
    kind = measures.kind(results.measure)
    digits = {name: one.digits for name, one in kind.measures.items()}
    shown = {**digits, **dict.fromkeys(kind.shown, 2)}
    rows: list[tuple[str, ...]] = []
    for row in results.rows:
        own, last = row.means.get(kind.model, {}), row.means.get("last", {})
        seeds = f"{len(row.seeds)}" + (f" of {row.planned}" if len(row.seeds) < row.planned else "")
        seeds += f", {len(row.diverged)} diverged" if row.diverged else ""
        cells = [row.setting, row.arm, number(row.value, "g"), AT[row.at], seeds]
        cells += [own[name].text(count) if own else "" for name, count in shown.items()]
        if kind.model != "last":
            cells.insert(6, last["NLL"].text(4) if last else "")
        rows.append(tuple(cells))
    names = [*shown]
    if kind.model != "last":
        names.insert(1, "NLL, last")
    found: list[Table] = [("Scores", ("setting", "arm", "value", "at", "seeds", *names), rows, 5)]
    heads = ("difference", "95%, seeds", f"95%, seeds and {kind.example}", "p", "visible")
    for name in sorted(kind.measures, key=lambda name: name != results.measure):
        compared: list[tuple[str, ...]] = [
            (row.setting, row.arm, AT[row.at], seeds_of(row), *effect_cells(row.against[name], digits[name]))
            + ((probability(row.holm),) if name == results.measure else ())
            for row in results.rows
            if row.against
        ]
        more = ("p, Holm",) if name == results.measure else ()
        found.append((f"{name} less the baseline's", ("setting", "arm", "at", "seeds", *heads, *more), compared, 4))
    main_digits = digits[results.measure]
    crossed: list[tuple[str, ...]] = [
        (one.arm, AT[one.at], f"{one.setting} less {one.than}", str(one.seeds), *effect_cells(one.effect, main_digits))
        for one in results.interactions
    ]
    found.append(
        (
            f"How the difference of {results.measure} changes (p is not corrected)",
            ("arm", "at", "settings", "seeds", *heads),
            crossed,
            4,
        )
    )
    asked: list[tuple[str, ...]] = []
    for contrast in results.contrasts:
        pairs = zip(contrast.groups[::2], contrast.groups[1::2], strict=True)
        cells = ["; less: ".join(map(" less ".join, pairs)), ", ".join(map(str, contrast.seeds))]
        for name in kind.measures:
            difference, _, both, p, _ = effect_cells(contrast.effects.get(name), digits[name])
            cells += [difference, both, p]
        asked.append(tuple(cells))
    heads_of = [head for name in kind.measures for head in (name, f"95%, seeds and {kind.example}", "p")]
    found.append(
        ("Asked when runs were known (all seeds; p is not corrected)", ("groups", "seeds", *heads_of), asked, 2)
    )
    tried: list[tuple[str, ...]] = [
        (
            one.setting,
            one.arm,
            number(one.best, "g"),
            ", ".join(f"{value:g}: {'diverged' if nll is None else f'{nll:.4f}'}" for value, nll in one.tried),
        )
        for one in results.tuned
    ]
    found.append(("Tuning, NLL on the valid set", ("setting", "arm", "best", "tried"), tried, 4))
    return [table for table in found if table[2]]


def notes(results: Results) -> list[str]:
    """Return what a reader has to know of the tables."""
    kind = measures.kind(results.measure)
    count = f", {results.sentences:,} {kind.example}" if results.sentences else ""
    lines = [
        f"{', '.join(results.tests)} together{count}; measure decided before the runs: {results.measure}; baseline: "
        f"{results.baseline}.",
        *(f"{name}: {signature}" for name, signature in results.signatures.items()),
        f"Mean ± standard deviation over seeds, {kind.model} model; differences on the seeds that both arms have; p by "
        "Welch's t; in brackets 95% intervals.",
        f"visible: about the smallest effect that would have been seen with power {POWER:.0%} at level {LEVEL:.0%} "
        "(with less power if there are two or three seeds); in brackets with the test sets' share. One seed has no "
        "interval.",
    ]
    # A run's name begins with setting and arm.
    missing = Counter(" ".join(name.split(".")[:2]) for name in results.missing)
    listed = ", ".join(f"{count} of {what}" for what, count in missing.items()) or "none"
    more = f", and {results.unnamed} that tuning has yet to name" if results.unnamed else ""
    lines.append(f"Not run yet: {listed}{more}.")
    return lines


def markdown(results: Results) -> str:
    """Return the tables as a page."""
    blocks = [f"# {results.title}\n", "  \n".join(notes(results)) + "\n"]
    for title, headings, rows, left in tables(results):
        blocks.append(f"## {title}\n")
        blocks.append(layout.markdown(headings, rows, [], left).rstrip("\n") + "\n")
    return "\n".join(blocks)


def write(study: Study, notes: Mapping[str, Note], folder: Path) -> list[Path]:
    """Write results.json, results.md and the plots of a study; return their paths."""
    found = build(study, notes, folder)
    records.write(folder / "results.json", asdict(found))
    write_text(folder / "results.md", markdown(found))
    return [folder / "results.json", folder / "results.md", *plots.draw(study, found, folder, folder)]
