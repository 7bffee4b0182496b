"""One self-contained HTML page: of runs scores, findings, settings, curves, translations; of studies all figures.

    fairseq-resid report RUN... [--study STUDY.yaml] [--out report.html]

It takes what evaluation and analysis left in the run folders. What is missing is said in the page, the rest goes on.
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .. import records
from ..analysis import analyze, curves, plots
from ..analysis.results import Analysis
from ..analysis.results import read_analysis as read_analysis
from ..cli import frame, quiet
from ..evaluation import compare
from ..files import read_bytes, write_text
from ..foreign import printable, say
from ..runs.run import Run, RunRecord
from ..runs.training_command import TrainingCommand
from ..study import archive, kept, plan, results, tables
from ..study import plots as study_plots
from ..version import __version__
from .differences import samples
from .findings import Finding, findings
from .glossary import Entry, entry

SIZE = 5_000_000  # bytes that a page should stay below
CAPTIONS = {
    "coefficients": "Mean (line) and spread (band) of each coefficient by layer; dashed: before the first update.",
    "histograms": "How often a coefficient lies where in [0, 1]; a row is a site, darker is more often.",
    "places": "Means by place in the sentence and by the token's frequency; a line is a site.",
    "learning": "Coefficients that are the same everywhere, over the training.",
    "norms": "Norms of shortcut, branch and output, and how much of the output the branch makes up.",
    "gradients": "Gradient norm of each site's output, mean over sentences or images; dashed: before the first update.",
    "losses": "What the model loses in nats a token, or an image, if the branch of one site is set to 0.",
}


@dataclass(frozen=True)
class Figure:
    """A plot as the page has it: the file itself in base 64, and what it shows in words."""

    data: str
    caption: str


@dataclass(frozen=True)
class StudyPart:
    """What the page says of one study."""

    name: str
    title: str
    notes: list[str]
    tables: list[tables.StudyTable]
    figures: list[Figure]


@dataclass(frozen=True)
class LearnedPart:
    """What the page says of one run's model."""

    run: str
    summary: list[str]
    figures: list[Figure]
    findings: list[Finding]

    @property
    def anchor(self) -> str:
        """A name that can be linked to."""
        return "run-" + re.sub(r"[^A-Za-z0-9_-]", "-", self.run)


def without_control(value: Any) -> Any:
    """Return what the page shows of a value of the template: its text `printable`."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def figure(path: Path, caption: str) -> Figure:
    """Return a plot that was written to a file."""
    return Figure(base64.b64encode(read_bytes(path)).decode("ascii"), caption)


def settings(runs: Sequence[Run]) -> list[tuple[str, list[str], bool]]:
    """Return every flag of the runs' commands with its value in each run; those that differ come first."""
    values = []
    for run in runs:
        record = records.remembered(run.record, RunRecord)
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
    """Make any error in the block a note, so that the rest of the page is made: `what` names the part, run and file."""
    try:
        yield
    except Exception as error:
        notes.append(f"{what}: left out: {reason(error)}")


def reason(error: Exception) -> str:
    """Return what an error says, in words if it is ours, else with its kind."""
    if quiet.is_verbose():
        traceback.print_exception(error)
    return str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"


def scores(
    runs: Sequence[Run], subset: str, notes: list[str], untested: str = ""
) -> tuple[dict[str, Any] | None, list[compare.Candidate]]:
    """Return the table of scores and the runs that have scores.

    Runs are tested against the first one if their scores can be compared, unless `untested` gives a reason not to.
    """
    candidates: list[compare.Candidate] = []
    for run in runs:
        try:
            candidate = compare.read_candidate(run.path, "averaged", subset)
        except Exception as error:
            notes.append(f"{run.name} has no scores here: {run.results(subset)}: {reason(error)}")
            continue
        if candidates and candidate.task is not candidates[0].task:
            notes.append(f"{run.name} has no scores here: it is not of {candidates[0].task.folder.content}")
            continue
        candidates.append(candidate)
    if not candidates:
        return None, []
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
        marks = dict.fromkeys(f"{one.corpus} {one.subset}: {task.signature(one)}" for one in results)
        return {"headings": headings, "rows": rows, "notes": [*marks, *filter(None, [untested])]}, candidates
    headings, rows, (about, *lines) = compare.tested(candidates)
    return {
        "headings": headings,
        "rows": rows,
        "notes": [about, f"Tested against {candidates[0].name}.", *lines],
    }, candidates


def read_analyses(runs: Sequence[Run], notes: list[str]) -> dict[Path, Analysis]:
    """Return the analysis of every run that has one, by its folder."""
    found = {}
    for run in runs:
        try:
            found[run.path] = read_analysis(analyze.analysis_file(run), f"fairseq-resid analyze {run.path}")
        except Exception as error:
            notes.append(f"{run.name} has no analysis: {reason(error)}")
    return found


def what_it_learned(
    run: Run, analysis: Analysis, baseline: Analysis | None, folder: Path, notes: list[str]
) -> LearnedPart:
    """Return what the page says of a run's model; a plot or a finding that cannot be made is a note."""
    what = f"{run.name}: {analyze.analysis_file(run)}"

    def note(part: str, error: Exception) -> None:
        notes.append(f"{what}: {part}: left out: {reason(error)}")

    summary, figures, found = [], [], []
    with fenced(notes, f"{what}: summary"):
        summary = analyze.summary(analysis)
    with fenced(notes, f"{what}: plots"):
        plotted = plots.draw_analysis(analysis, folder, lambda name, error: note(f"plot {name}", error))
        figures = [figure(path, CAPTIONS[name]) for name, path in plotted.items()]
    with fenced(notes, f"{what}: findings"):
        found = findings(analysis, baseline, lambda error: note("a finding", error))
    return LearnedPart(run.name, summary, figures, found)


def draw_curves(runs: Sequence[Run], path: Path, notes: list[str]) -> list[Figure]:
    """Draw the curves of every run that has a log; nothing if none has."""
    logged: dict[str, list[curves.Curves]] = {}
    for label, alike in curves.group_by_setting(runs).items():
        for run in alike:
            try:
                one = curves.read_curves(run)
            except Exception as error:
                notes.append(f"{run.name} has no curves: {reason(error)}")
            else:
                logged.setdefault(label, []).append(one)
    if not logged:
        return []
    curves.draw_curves(logged, path)
    return [figure(path, "Training and validation, by updates.")]


def study_part(file: Path, folder: Path) -> StudyPart:
    """Return what a study has found so far; its plots are drawn into `folder`."""
    study, name = plan.read_study(file), file.stem
    runs = archive.runs_folder(file.with_suffix(""))
    found = results.build_results(study, kept.load_notes(study, file, runs), runs)
    drawn = study_plots.draw_study(study, found, runs, folder)
    figures = [figure(path, f"{study_plots.CAPTIONS[path.stem]}.") for path in drawn]
    return StudyPart(name, found.title, tables.notes(found), tables.tables(found), figures)


def build(runs: Sequence[Run], subset: str, studies: Sequence[Path] = (), untested: str = "") -> str:
    """Return the page."""
    notes: list[str] = []
    table: dict[str, Any] | None = None
    candidates: list[compare.Candidate] = []
    with fenced(notes, "scores"):
        table, candidates = scores(runs, subset, notes, untested)
    analyses = read_analyses(runs, notes)
    learned, drawn, parts, texts, rows = [], [], [], [], []
    glossary: list[Entry] = []
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            if run.path in analyses:
                baseline = analyses.get(runs[0].path)
                learned.append(what_it_learned(run, analyses[run.path], baseline, Path(folder), notes))
        with fenced(notes, "curves"):
            drawn = draw_curves(runs, Path(folder) / "curves.svg", notes)
        for file in studies:
            with fenced(notes, f"study {file}") if runs or len(studies) > 1 else nullcontext():
                parts.append(study_part(file, Path(folder) / file.stem))
    if candidates:
        with fenced(notes, f"translations of {candidates[0].path}"):
            shown = candidates[0].task.texts(candidates)
            texts = samples(shown.sources, shown.references, shown.outputs) if shown else []
    with fenced(notes, "settings"):
        rows = settings(runs)
    for run in runs:
        structure = analyses[run.path].structure if run.path in analyses else None
        if structure is not None and structure not in [each.name for each in glossary]:
            with fenced(notes, f"{run.name}: {analyze.analysis_file(run)}: structure {structure}"):
                glossary.append(entry(structure))
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined, finalize=without_control
    )
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=f"Report on {', '.join([*(file.stem for file in studies), *(run.name for run in runs)])}",
        about=f"Made by fairseq_resid {__version__} from what is in the run folders. It needs no network.",
        notes=notes,
        studies=parts,
        scores=table,
        runs=[run.name for run in runs],
        settings=rows,
        curves=drawn,
        learned=learned,
        samples=texts,
        glossary=glossary,
    )


@frame.command(
    "report",
    "Write one self-contained HTML page of several runs, or of a study: scores, findings, curves, translations.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid report`."""
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="run folders; the first is the baseline")
    add(
        "--study", action="append", default=[], type=Path, metavar="STUDY.yaml", help="a study, too; can be given again"
    )
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page (default report.html)")
    add("--subset", default="test", metavar="NAME", help="the part of the data whose scores are shown (default test)")
    add(
        "--untested",
        default="",
        metavar="REASON",
        help="show scores without significance tests, and this reason below the table",
    )
    options = parser.parse_intermixed_args(argv)
    if not options.runs and not options.study:
        parser.error("give one or more run folders, or a study with --study")
    for path in options.runs:
        if not path.is_dir():
            raise ValueError(f"{path}: no such run folder")
    runs = [Run(path) for path in dict.fromkeys(options.runs)]
    page = build(runs, options.subset, options.study, options.untested)
    write_text(options.out, page)
    size = len(page.encode())
    if size > SIZE:
        say(f"{parser.prog}: warning: {options.out}: {size:,} bytes: name fewer runs at once", file=sys.stderr)
    say(f"{options.out}: {size / 1e6:.1f} MB; open it in a browser")
