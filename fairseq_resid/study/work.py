"""Execute one run of a study: train, evaluate, analyse, and keep its results. An interrupted run is resumed."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .. import records
from ..cli import children
from ..data import folders
from ..evaluation import evaluate, job
from ..fairseq_patches.training import DIVERGED
from ..files import last_lines, locked
from ..runs import launch
from ..runs import settings as evaluation_settings
from ..runs.request import request
from ..runs.run import Run, saved_at
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
            # A loss or gradient that is not finite is a result.
            if not any(DIVERGED in line for line in last_lines(folder.train_log, children.TAIL)):
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
            # The plots are not kept, because they can be redrawn from the numbers.
            code = children.run([sys.executable, "-m", "fairseq_resid", "analyze", str(folder.path)])
            if code:
                raise ChildProcessError(f"fairseq-resid analyze {folder.path} failed with exit code {code}")
        seconds = folder.training_summary().train_seconds or trained - begun
        kept.keep_run(folder, replace(note, seconds=round(seconds + time.monotonic() - trained, 1)), target)
        if not weights:
            unwanted = folder.path.with_name(f"{run.name}{UNWANTED}")
            folder.path.rename(unwanted)
            shutil.rmtree(unwanted)
    (place.work / f"{run.name}.lock").unlink(missing_ok=True)


def scored(study: Study, run: Planned, folder: Run, note: kept.Note) -> kept.Note:
    """Return the note with the validation NLL and, unless the run is for tuning, the test scores of all models.

    The scores by sentence are written to the run folder.
    Raises: FloatingPointError if a validation NLL is not finite.
    """
    settings = replace(evaluation_settings.of(folder), last=study.averaged(run.is_tuning), epochs=())
    saved = folder.numbered("epoch") or folder.numbered("update")
    if saved and not run.is_tuning:
        trained = saved_at(saved[-1])[0]
        windows = tuple(window for window in study.windows if window[1] < trained)
        settings = replace(settings, epochs=windows, are_epochs_required=True)
    valid, *jobs = [job.find_job(folder.path, None, settings, subset, False) for subset in ("valid", *study.all_tests)]
    with valid.run.lock():
        evaluate.make_averages(valid)
        nll = {model: valid.task.nll(valid, model) for model in valid.models}
    if not all(map(math.isfinite, nll.values())):
        raise FloatingPointError
    note = replace(note, valid=nll, parameters=valid.parameters)
    if run.is_tuning:
        return note
    for one in jobs:
        evaluate.evaluate(one)
    task = valid.task
    tests = {measure: study.tests_of(measure) for measure in task.studied.measures}
    scores = {model: task.score_together(jobs, model, tests) for model in valid.models}
    return replace(note, scores=scores)
