"""Write a self-contained HTML page: scores, findings, settings, curves and translations of runs; results of studies.

    fairseq-resid report RUN... [--study STUDY.yaml] [--out report.html]

It reads the files that evaluation and analysis wrote to the run folders. The page lists missing or damaged parts.
"""

from __future__ import annotations

import argparse
import base64
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from ..analysis import analyze, curves, plots
from ..analysis.results import Analysis, read_analysis
from ..cli import frame
from ..console import say
from ..evaluation import compare
from ..evaluation import table as score_table
from ..files import write_text
from ..runs.run import Results, Run, RunRecord
from ..runs.training_command import TrainingCommand
from ..study import archive, kept, plan, results, tables
from ..study import plots as study_plots
from ..version import __version__
from .differences import samples
from .findings import findings
from .glossary import entry

CAPTIONS = {
    "coefficients": "Mean (line) and spread (band) of each coefficient by layer; dashed: at initialisation.",
    "histograms": "Histogram of a coefficient over [0, 1]; each row is a site, darker is more frequent.",
    "places": "Means by position in the sentence and by token frequency; each line is a site.",
    "learning": "Coefficients that do not depend on the input, during training.",
    "norms": "Norms of shortcut, branch and output, and the branch's share of the output.",
    "gradients": "Gradient norm of each site's output, mean over sentences or images; dashed: at initialisation.",
    "losses": "Increase in NLL, in nats per token or per image, if the branch of one site is set to 0.",
}


def figure(path: Path, caption: str) -> dict[str, str]:
    """Return a plot to embed in the page: its SVG file in base 64, and a caption."""
    return {"data": base64.b64encode(path.read_bytes()).decode("ascii"), "caption": caption}


def settings(runs: Sequence[Run], notes: list[str]) -> list[tuple[str, list[str], bool]]:
    """Return every flag of the runs' commands with its value in each run; flags with different values come first."""
    values = []
    for run in runs:
        record: RunRecord | None = None
        with fenced(notes, f"{run.name}: settings"):
            record = run.read_record()
        command = TrainingCommand.parse(record.command) if record else None
        flags = {flag: " ".join(given) or "yes" for flag, given in command.flags} if command else {}
        values.append({"data": command.data, **flags} if command else None)
    rows = []
    for flag in dict.fromkeys(name for each in values if each for name in each):
        row = ["unknown" if each is None else each.get(flag, "") for each in values]
        rows.append((flag, row, len(set(row)) > 1))
    return sorted(rows, key=lambda row: not row[2])


@contextmanager
def fenced(notes: list[str], what: str) -> Iterator[None]:
    """Turn the error for a missing or damaged file into a note, so that the page is still written.

    what: the part of the page, the run and the file that the note names
    """
    try:
        yield
    except (ValueError, OSError) as error:
        notes.append(f"{what}: left out: {error}")


def scores(
    runs: Sequence[Run], subset: str, notes: list[str], untested: str = "", data: Path | None = None
) -> tuple[dict[str, Any] | None, list[compare.Candidate]]:
    """Return the table of scores and the runs whose outputs can be shown.

    Runs are tested against the first one if their scores can be compared, unless `untested` gives a reason not to test
    them. If no run can be read with its references, as when the data folder is elsewhere, the table only repeats the
    scores that the runs have recorded.
    """
    candidates: list[compare.Candidate] = []
    found: dict[Path, Results] = {}
    unread: dict[str, list[str]] = {}
    for run in runs:
        try:
            found[run.path] = run.read_results(subset)
        except (ValueError, OSError) as error:
            notes.append(f"{run.name} has no scores here: {error}")
            continue
        try:
            candidate = compare.read_candidate(run.path, "averaged", subset, data)
        except (ValueError, OSError) as error:
            unread.setdefault(str(error), []).append(run.name)
            continue
        if candidates and candidate.task is not candidates[0].task:
            notes.append(f"{run.name} has no scores here: it was not trained on {candidates[0].task.folder.content}")
            continue
        candidates.append(candidate)
    only = "left out of the scores" if candidates else "not tested, and shown without outputs"
    notes += [f"{', '.join(names)}: {only}: {why}" for why, names in unread.items()]
    if not candidates:
        return recorded(found, notes, untested), []
    candidates = compare.with_distinct_names(candidates)
    task = candidates[0].task
    try:
        compare.check_comparable(candidates)
    except ValueError as error:
        notes.append(str(error))
        candidates, alone = candidates[:1], candidates
    else:
        alone = candidates if untested or len(candidates) == 1 else []
    if alone:
        headings, rows = task.list_apart(alone)
        results = [each.results for each in alone]
        sets = score_table.names_of_test_sets(results)
        marks = dict.fromkeys(f"{name}: {task.signature(one)}" for name, one in zip(sets, results, strict=True))
        return {**with_last(alone, headings, rows), "notes": [*marks, *filter(None, [untested])]}, candidates
    headings, rows, (about, *lines) = compare.tested(candidates)
    return {
        **with_last(candidates, headings, rows),
        "notes": [about, f"Tested against {candidates[0].name}.", *lines],
    }, candidates


def with_last(
    candidates: Sequence[compare.Candidate], headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return headings and rows of a table, with the last checkpoint's score beside the average's.

    An average may be worse, if its oldest checkpoints are.
    """
    task = candidates[0].task
    if not task.has_averages:
        return {"headings": headings, "rows": rows}
    last = [task.table_scores(Run(each.path), each.results)[1] for each in candidates]
    return {
        "headings": [*headings[:2], *task.table_headings[:2], *headings[3:]],
        "rows": [[*row[:3], score, *row[3:]] for row, score in zip(rows, last, strict=True)],
    }


def recorded(results: dict[Path, Results], notes: list[str], untested: str) -> dict[str, Any] | None:
    """Return the table of the scores in results.json; None if there are none, or those of different tasks."""
    if results:
        with fenced(notes, "scores"):
            return {
                "headings": score_table.headings(results),
                "rows": score_table.rows(results),
                "notes": [*score_table.notes(results), *filter(None, [untested])],
            }
    return None


def read_analyses(runs: Sequence[Run], notes: list[str]) -> dict[Path, Analysis]:
    found = {}
    for run in runs:
        try:
            found[run.path] = read_analysis(analyze.analysis_file(run), f"fairseq-resid analyze {run.path}")
        except (ValueError, OSError) as error:
            notes.append(f"{run.name} has no analysis: {error}")
    return found


def study_part(file: Path, folder: Path) -> dict[str, Any]:
    """Return the section on a study's results so far; its plots are saved in `folder`.

    figures: all figures by name; others: those that belong to no table

    Raises: ValueError naming the study if no run has finished.
    """
    study = plan.read_study(file)
    runs = archive.runs_folder(archive.kept_folder(file))
    finished = kept.load_notes(study, file, runs)
    if not finished:
        raise ValueError(f"{file}: no finished runs; run fairseq-resid study {file} first")
    found = results.build_results(study, finished, runs, results.other_studies(study, file, finished))
    drawn = study_plots.draw_study(study, found, runs, folder)
    figures = {path.stem: figure(path, f"{study_plots.CAPTIONS[path.stem]}.") for path in drawn}
    shown = tables.tables(found)
    placed = {plot for table in shown for plot in table.plots}
    return {
        "name": file.stem,
        "title": found["title"],
        "summary": tables.summary(found),
        "tables": shown,
        "figures": figures,
        "others": [one for plot, one in figures.items() if plot not in placed],
        "notes": tables.notes(found),
    }


def build(
    runs: Sequence[Run], subset: str, studies: Sequence[Path] = (), untested: str = "", data: Path | None = None
) -> str:
    """Return the page. data: the data folder of the runs, if it is not the one named in their results."""
    notes: list[str] = []
    table, candidates = scores(runs, subset, notes, untested, data)
    analyses = read_analyses(runs, notes)
    learned, parts, drawn, texts, output = [], [], [], [], ""
    glossary: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in runs:
            if found := analyses.get(run.path):
                written = plots.draw_analysis(found, folder).items()
                learned.append(
                    {
                        "run": run.name,
                        "anchor": "run-" + re.sub(r"[^A-Za-z0-9_-]", "-", run.name),
                        "summary": analyze.summary(found),
                        "figures": [figure(path, CAPTIONS[plot]) for plot, path in written],
                        "findings": findings(found, analyses.get(runs[0].path)),
                    }
                )
        logged = curves.by_setting(runs, lambda run, error: notes.append(f"{run.name} has no curves: {error}"))
        if logged:
            curves.draw_curves(logged, folder / "curves.svg")
            drawn.append(figure(folder / "curves.svg", "Training and validation by update."))
        for file in studies:
            with fenced(notes, f"study {file}") if runs or len(studies) > 1 else nullcontext():
                parts.append(study_part(file, folder / file.stem))
    if candidates:
        with fenced(notes, f"{candidates[0].task.words.output}s of {candidates[0].path}"):
            output = candidates[0].task.words.output
            shown = candidates[0].task.texts(candidates, data)
            texts = samples(shown) if shown else []
    for run in runs:
        structure = analyses[run.path].structure if run.path in analyses else None
        if structure is not None and structure not in [each["name"] for each in glossary]:
            with fenced(notes, f"{run.name}: {analyze.analysis_file(run)}: structure {structure}"):
                glossary.append(entry(structure))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=f"Report on {', '.join([*(file.stem for file in studies), *(run.name for run in runs)])}",
        about=f"Made by fairseq_resid {__version__} from the files in the run folders. This page works offline.",
        notes=notes,
        studies=parts,
        scores=table,
        runs=[run.name for run in runs],
        settings=settings(runs, notes),
        curves=drawn,
        learned=learned,
        samples=texts,
        output=output,
        glossary=glossary,
    )


@frame.command(
    "report",
    "Write a self-contained HTML page on runs or a study: scores, findings, curves and translations.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid report`."""
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="run folders; the first is the baseline")
    add("--study", action="append", default=[], type=Path, metavar="STUDY.yaml", help="add a study; may be repeated")
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="output file (default: report.html)")
    add("--subset", default="test", metavar="NAME", help="subset whose scores are shown (default: test)")
    add("--data", type=Path, help="data folder of the runs (default: the one named in their results)")
    add(
        "--untested",
        default="",
        metavar="REASON",
        help="show scores without significance tests, with this reason below the table",
    )
    options = parser.parse_intermixed_args(argv)
    if not options.runs and not options.study:
        parser.error("give one or more run folders, or a study with --study")
    for path in options.runs:
        Run(path).require()
    runs = [Run(path) for path in dict.fromkeys(options.runs)]
    page = build(runs, options.subset, options.study, options.untested, options.data)
    write_text(options.out, page)
    say(f"{options.out}: {len(page.encode()) / 1e6:.1f} MB; open it in a browser")
