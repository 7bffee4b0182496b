"""Execute the missing runs of a study and write its results.

    fairseq-resid study STUDY.yaml [--jobs N] [--hours H]

Each run is executed once, in the order of the study's plan. The files needed for the results are kept in
STUDY/RUN next to the study file; unfinished runs are in --work. After an interrupt, the same command resumes the study.
--pack packs the kept runs of a complete study into one archive.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .. import records
from ..cli import frame, machine
from ..cli.progress import clock
from ..console import say
from ..files import last_lines, locked, read_lines, write_text
from ..runs import devices, launch
from . import archive, kept, plan, work
from .executors import LocalExecutor, SubmititExecutor, group_gpus
from .kept import Note
from .plan import Planned, Study
from .work import StudyFolders

Executor = LocalExecutor | SubmititExecutor
POLL = 1.0  # seconds between checks on the running processes
SHARED = 60.0  # seconds within which files of another machine become visible in a shared folder


@dataclass
class State:
    """The progress of a study: notes of kept runs, and reasons for failures, by run name."""

    study: Study
    place: StudyFolders
    notes: dict[str, Note]
    failed: dict[str, str] = field(default_factory=dict)

    def nll(self) -> dict[Planned, float]:
        return kept.nll_of(self.notes)

    def missing(self) -> list[Planned]:
        return [run for run in plan.runs(self.study, self.nll()) if run.name not in self.notes]

    def undetermined(self) -> int:
        return plan.undetermined_runs(self.study, self.nll())

    def seconds(self, run: Planned) -> float | None:
        """Estimate the duration of a run from similar finished runs; None if there are none."""
        for what in (("setting", "arm", "is_tuning"), ("setting", "is_tuning"), ("is_tuning",), ()):
            alike = [note for note in self.notes.values() if all(getattr(note.run, x) == getattr(run, x) for x in what)]
            if known := [note.seconds for note in alike if note.seconds]:
                return sum(known) / len(known)
        return None

    def left(self, slots: int) -> str:
        """Describe the missing runs and their estimated duration."""
        missing = self.missing()
        known = [seconds for run in missing if (seconds := self.seconds(run)) is not None]
        more = self.undetermined()
        count = f"{len(missing)} {'run' if len(missing) == 1 else 'runs'} missing"
        count += f", and {more} that depend on tuning" if more else ""
        if not missing and not more:
            return "no runs missing"
        if len(known) < len(missing) or not known:
            return count
        total = sum(known) + more * sum(known) / len(known)
        hours = f"{total / 3600:.1f} hours" if total >= 3600 else f"{math.ceil(total / 60)} minutes"
        return f"{count}: about {hours} of running time, estimated from finished runs; {clock(total / slots)} here"


def read_state(study: Study, place: StudyFolders) -> State:
    """Return the progress of a study. Raises: see `kept.load_notes`."""
    notes = kept.load_notes(study, place.file, archive.runs_folder(place.kept))
    failures = {path.stem: "\n".join(read_lines(path)) for path in sorted(place.work.glob("failed/*.txt"))}
    return State(study, place, notes, {name: text for name, text in failures.items() if name not in notes})


def command(place: StudyFolders, run: Planned, weights: bool) -> list[str]:
    argv = [sys.executable, "-m", "fairseq_resid", "study", str(place.file), "--only", run.name]
    argv += ["--work", str(place.work), "--kept", str(place.kept)]
    return argv + (["--weights"] if weights else [])


def run_missing(state: State, executor: Executor, slots: int, weights: bool, until: float) -> None:
    """Execute all missing runs that are known so far, as many at a time as the executor allows.

    No run is started after `until`.
    """
    place = state.place
    running: set[str] = set()
    for folder in place.work.glob(f"*{work.UNWANTED}"):  # from a run that was killed while it removed its weights
        shutil.rmtree(folder, ignore_errors=True)
    say(f"{place.name}: {state.left(slots)}")
    try:
        while True:
            waiting = [run for run in state.missing() if run.name not in {*running, *state.failed}]
            room = executor.room() if time.monotonic() < until else 0
            if now := waiting[:room]:
                executor.start({run.name: command(place, run, weights) for run in now})
                for run in now:
                    running.add(run.name)
                    say(f"{run.name}: started")
            if not running:
                return
            time.sleep(POLL)
            for name, code in executor.ended().items():
                running.remove(name)
                ended(state, name, code)
                say(f"{name}: {said(state, name)}; {state.left(slots)}")
    finally:
        if running or sys.exc_info()[0]:
            executor.stop()


def ended(state: State, name: str, code: int) -> None:
    """Record the outcome of a run that has ended."""
    place = state.place
    until = time.monotonic() + (SHARED if code == 0 else 0)
    while name not in (notes := kept.read_notes(place.kept, place.name)) and time.monotonic() < until:
        time.sleep(POLL)
    state.notes = notes
    if name not in state.notes:
        state.failed[name] = reason(place, name, code)
        text = place.work / f"failed/{name}.txt"
        text.parent.mkdir(exist_ok=True)
        write_text(text, state.failed[name])


def reason(place: StudyFolders, name: str, code: int) -> str:
    """Return why a run failed: the last error in its output, or else its last line, and the path of the output."""
    out = place.work / f"logs/{name}.out"
    lines = last_lines(out, 1000) if out.is_file() else []
    errors = [line for line in lines if "error:" in line]
    last = (errors or lines or [f"exit code {code}"])[-1].strip()
    return f"{last} ({out if lines else place.work / 'logs'})"


def said(state: State, name: str) -> str:
    if name in state.failed:
        return f"failed: {state.failed[name]}"
    note = state.notes[name]
    if note.outcome == "diverged":
        return "diverged"
    scores = note.scores.get(state.study.task.studied.best)
    text = ", ".join(f"{kind} {score.score:.4g}" for kind, score in scores.items()) if scores else ""
    return text or f"valid NLL {note.nll:.4f}"


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE of --cluster-option for submitit; values are read as YAML, or as text if they are not YAML.

    Raises: ValueError naming an option without "=".
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--cluster-option {text}: must be NAME=VALUE")
        try:
            found[name] = records.from_yaml(value)
        except (ValueError, yaml.YAMLError):
            found[name] = value
    return found


def show_plan(state: State) -> None:
    for run in plan.runs(state.study, state.nll()):
        done = run.name in state.notes or run.name in state.failed
        seconds = state.seconds(run)
        about = f"missing, about {clock(seconds)}" if seconds else "missing"
        say(f"{run.name}: {said(state, run.name) if done else about}")


@frame.command(
    "study",
    "Execute the missing runs of a study in the order of its plan, and write its tables and plots. The files kept from "
    "each run are stored next to the study file.",
    again="resumes",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    options = parse(parser, argv)
    study = plan.read_study(options.study)
    place = StudyFolders(
        options.study,
        options.work or Path("checkpoints") / f"study-{options.study.stem}",
        options.kept or archive.kept_folder(options.study),
    )
    if options.unpack:
        say(f"{place.kept}: {archive.unpack(place.kept)} runs")
        return 0
    state = read_state(study, place)
    if options.only:
        place.claim()
        run = next(run for run in plan.runs(study, state.nll()) if run.name == options.only)
        work.do_run(study, run, place, options.weights)
        return 0
    if options.pack:
        if state.missing() or state.undetermined() or state.failed:
            raise ValueError(f"--pack: {options.study}: {state.left(1)}; only a complete study can be packed")
        if archive.run_folders(place.kept):
            say(archive.pack(place.kept))
    if not (options.results or options.pack):
        plan.check_study(study, options.study)
    if not (options.results or options.plan or options.pack):
        place.claim()
        if missing := state.missing():
            launch.check_data(plan.flags_of(study, missing[0]))  # before the first run: a failed one needs --retry
            if archive.runs_folder(place.kept) != place.kept:
                archive.unpack(place.kept)  # the study continues
        with locked(place.work / ".lock", f"{place.work}: another process is running this study"):
            if options.retry:
                for name in state.failed:
                    (place.work / "failed" / f"{name}.txt").unlink()
                state.failed.clear()
            executor, slots = make_executor(options, place)
            until = time.monotonic() + 3600 * options.hours if options.hours else math.inf
            before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            try:
                run_missing(state, executor, slots, options.weights, until)
            finally:
                signal.signal(signal.SIGTERM, before)
    if options.plan:
        show_plan(state)
        say(f"{place.name}: {state.left(1)}")
    elif options.results and not state.notes:
        raise ValueError(f"--results: {place.kept}: contains no finished run of {place.name}")
    elif state.notes:
        from .tables import write_results

        say(f"{place.name}: computing results; finished runs: {len(state.notes)}")
        for path in write_results(state.study, place.file, state.notes, place.kept):
            say(path)
    choices = plan.choices(study, state.nll()).items()
    hopeless = [f"{arm} in {setting}" for (setting, arm), one in choices if not (one.to_try or one.best)]
    for where in hopeless:
        say(f"{where}: diverges at every value of {study.tuning.flag if study.tuning else ''}", file=sys.stderr)
    for name, text in state.failed.items():
        say(f"{name}: failed: {text}; use --retry to try it again", file=sys.stderr)
    return 1 if state.failed or hopeless else 0


def make_executor(options: argparse.Namespace, place: StudyFolders) -> tuple[Executor, int]:
    """Return the executor and the number of parallel runs (1 on a cluster, where the number is unknown)."""
    if options.cluster:
        given = parameters(options.cluster_option)
        if options.cluster == "slurm" and not {"timeout_min", "slurm_time"} & given.keys():
            raise ValueError("--cluster slurm: requires --cluster-option timeout_min=MINUTES; submitit's default is 5")
        return SubmititExecutor(options.cluster, place.work / "logs", given), 1
    cores = machine.cores()
    visible = visible_gpus()
    gpus = group_gpus(visible, options.gpus) if options.gpus else []
    # A run on a GPU also has processes that load data, so do not pin it to one core.
    threads = options.threads or (None if visible else 1)
    slots = options.jobs or len(gpus) or (1 if visible else max(1, cores // (threads or 1)))
    return LocalExecutor(slots, threads, place.work / "logs", gpus), slots


def visible_gpus() -> list[str]:
    """Return the identifiers of this process's GPUs for CUDA_VISIBLE_DEVICES."""
    count = len(devices.gpus())
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] or [str(number) for number in range(count)]


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    add, count = parser.add_argument, frame.integer(1)
    add("study", type=Path, metavar="STUDY.yaml", help="the study file")
    add("--work", type=Path, metavar="DIR", help="folder for unfinished runs (default: checkpoints/study-NAME)")
    add("--kept", type=Path, metavar="DIR", help="folder for results (default: the study file's path without .yaml)")
    add(
        "--jobs",
        type=count,
        metavar="N",
        help="number of parallel runs (default: one per --threads cores; with GPUs, one per group of --gpus)",
    )
    add("--threads", type=count, metavar="N", help="threads per run, on cores of its own (default: 1; with GPUs: all)")
    add("--gpus", type=count, metavar="N", help="GPUs per run; parallel runs get groups of N (default: all)")
    add("--hours", type=float, metavar="H", help="start no new runs after H hours")
    add("--retry", action="store_true", help="try failed runs again")
    add("--weights", action="store_true", help="keep the checkpoints of finished runs in --work")
    add("--plan", action="store_true", help="list the runs without running any")
    add("--pack", action="store_true", help="pack the kept runs of a complete study into STUDY.tar.xz")
    add("--unpack", action="store_true", help="unpack the run folders of STUDY.tar.xz without running any")
    add("--results", action="store_true", help="write tables and plots of the finished runs without running any")
    add(
        "--cluster",
        choices=("slurm", "local", "debug"),
        help="run through submitit: on Slurm, or here with its own executors",
    )
    add(
        "--cluster-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of submitit, such as timeout_min=60",
    )
    add("--only", metavar="RUN", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if here := [name for name in ("jobs", "threads", "gpus") if options.cluster and getattr(options, name)]:
        parser.error(f"--{here[0]}: only for runs on this machine; with --cluster, set resources with --cluster-option")
    if options.cluster_option and not options.cluster:
        parser.error("--cluster-option: requires --cluster")
    return options
