"""Execute one run of a study: train, evaluate, analyse, and keep its results. An interrupted run is resumed."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import fairseq_patches, records
from ..cli import children
from ..data import folders
from ..evaluation import evaluate, job
from ..files import last_lines, locked
from ..runs import launch
from ..runs import settings as evaluation_settings
from ..runs.request import request
from ..runs.run import Run, saved_at
from ..scoring.task import ScoringJob
from . import kept
from .plan import Planned, Study, arguments, flags_of

UNWANTED = ".unwanted"  # end of the name of a run folder that is being removed


@dataclass(frozen=True)
class StudyFolders:
    """The file of a study, the folder with its unfinished runs, and the folder with its kept results."""

    file: Path
    work: Path
    kept: Path

    @property
    def name(self) -> str:
        return self.file.stem

    def claim(self) -> None:
        """Mark the working folder as belonging to this study.

        Raises: ValueError if it belongs to another study.
        """
        owner = self.work / "study.json"
        name = records.read_if_there(owner, str)
        if name not in (None, self.name):
            raise ValueError(f"--work {self.work}: contains runs of the study {name}, not of {self.name}")
        if name is None:
            self.work.mkdir(parents=True, exist_ok=True)
            records.write(owner, self.name)


def do_run(study: Study, run: Planned, place: StudyFolders, weights: bool) -> None:
    """Train and evaluate a run, keep its results in place.kept, and remove its folder unless weights are kept too.

    Raises: ValueError, ChildProcessError or OSError if a step fails. A diverged run is kept, with that outcome.
    """
    folder, target = Run(place.work / run.name), place.kept / run.name
    # The process of a killed study may still be running.
    with locked(place.work / f"{run.name}.lock", f"{run.name}: another process is running it", wait=True):
        if kept.note_file(target).is_file():
            return
        flags = shlex.join(flags_of(study, run).arguments)
        arch, extra = arguments(study, run)
        requested = request(study.recipe, arch, extra, folder.path)
        launch.check_data(requested.command)
        data = Path(requested.command.data)
        begun = time.monotonic()
        outcome: kept.Outcome = "finished"
        with locked(folder.path / ".lock", f"{folder.path}: a previous training run is still running in it", wait=True):
            pass
        try:
            launch.train(requested)
        except ChildProcessError:
            if not has_diverged(folder):
                raise
            outcome = "diverged"
        trained = time.monotonic()
        note = kept.Note(
            place.name,
            run,
            flags,
            outcome,
            terms=kept.scoring_terms(study, run),
            data=folders.of_folder(data).fingerprint(data),
        )
        if outcome == "finished":
            try:
                note = scored(study, run, folder, note)
            except FloatingPointError:
                note = replace(note, outcome="diverged")
        if note.outcome == "finished" and run.seed <= study.analyze and not run.is_tuning:
            analyze(folder)
        seconds = folder.training_summary().train_seconds or trained - begun
        kept.keep_run(folder, replace(note, seconds=round(seconds + time.monotonic() - trained, 1)), target)
        if not weights:
            unwanted = folder.path.with_name(f"{run.name}{UNWANTED}")
            folder.path.rename(unwanted)
            shutil.rmtree(unwanted)
    (place.work / f"{run.name}.lock").unlink(missing_ok=True)


def has_diverged(run: Run) -> bool:
    """Return whether a training run failed because its loss or gradient was not finite."""
    return any(fairseq_patches.DIVERGED in line for line in last_lines(run.train_log, children.TAIL))


def analyze(run: Run) -> None:
    """Run `fairseq-resid analyze`. Its plots are not kept, because they can be redrawn from its numbers."""
    code = children.run([sys.executable, "-m", "fairseq_resid", "analyze", str(run.path)])
    if code:
        raise ChildProcessError(f"fairseq-resid analyze {run.path} failed with exit code {code}")


def scored(study: Study, run: Planned, folder: Run, note: kept.Note) -> kept.Note:
    """Return the note with the validation NLL and, unless the run is for tuning, the test scores of all models.

    The scores by sentence are written to the run folder.
    Raises: FloatingPointError if a validation NLL is not finite.
    """
    tuning = study.tuning
    last = tuning.average if run.is_tuning and tuning else study.average
    settings = replace(evaluation_settings.of(folder), last=last, epochs=())
    saved = folder.numbered("epoch") or folder.numbered("update")
    if saved and not run.is_tuning:
        trained = saved_at(saved[-1])[0]
        windows = tuple(window for window in study.windows if window[1] < trained)
        settings = replace(settings, epochs=windows, are_epochs_required=True)
    valid, *jobs = [job.find_job(folder.path, None, settings, subset, False) for subset in ("valid", *study.all_tests)]
    nll = valid_nll(valid)
    if not all(map(math.isfinite, nll.values())):
        raise FloatingPointError
    note = replace(note, valid=nll, parameters=valid.parameters)
    if run.is_tuning:
        return note
    for one in jobs:
        evaluate.evaluate(one)
    task = valid.task
    tests = {measure: study.tests_of(measure) for measure in task.studied.measures}
    scores = {model.name: task.score_together(jobs, model.name, tests) for model in valid.models()}
    return replace(note, scores=scores)


def valid_nll(valid: ScoringJob[Any]) -> dict[str, float]:
    """Return the validation NLL of every model of a run."""
    with valid.run.lock():
        evaluate.make_averages(valid)
        return {model.name: valid.task.nll(valid, model) for model in valid.models()}
