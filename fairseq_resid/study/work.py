"""One run of a study, from nothing to what is kept of it: trained, evaluated, analysed. Begun again, it goes on."""

from __future__ import annotations

import math
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import fairseq_patches as compat
from .. import records
from ..cli import children
from ..evaluation import evaluate, images, job, likelihood, scoring
from ..files import locked, read_lines, write_text
from ..runs import launch
from ..runs import settings as evaluation_settings
from ..runs.run import Run, Scored
from . import kept
from .plan import Planned, Study, arguments, settings


@dataclass(frozen=True)
class StudyFolders:
    """The file of a study, the folder of its unfinished runs, and the folder of its kept results."""

    file: Path
    work: Path
    kept: Path

    @property
    def name(self) -> str:
        return self.file.stem

    def claim(self) -> None:
        """Make the working folder this study's.

        Raises: ValueError if it is another's.
        """
        owner = self.work / "study.json"
        name = records.read_if_there(owner, str)
        if name not in (None, self.name):
            raise ValueError(f"--work {self.work}: holds the runs of the study {name}, not of {self.name}")
        if name is None:
            self.work.mkdir(parents=True, exist_ok=True)
            records.write(owner, self.name)


def do(study: Study, run: Planned, place: StudyFolders, weights: bool) -> None:
    """Train and evaluate a run, put into place.kept what is kept, and remove its folder unless the weights stay too.

    Raises: ValueError, ChildProcessError, OSError; a training that diverges is kept as what it is.
    """
    folder, target = Run(place.work / run.name), place.kept / run.name
    # Another process can be at work in it: of an engine that was killed.
    with locked(place.work / f"{run.name}.lock", f"{run.name}: another process is at work in it", wait=True):
        if kept.file(target).is_file():
            return
        arch, extra = arguments(study, run)
        requested = launch.request(study.recipe, arch, extra, folder.path)
        launch.check_data(requested.command)
        begun = time.monotonic()
        outcome: kept.Outcome = "finished"
        with locked(
            folder.path / ".lock", f"{folder.path}: a training that was left behind is at work in it", wait=True
        ):
            pass
        try:
            launch.train(requested.command, folder, requested.record(), requested.rank)
        except ChildProcessError:
            if not has_diverged(folder):
                raise
            outcome = "diverged"
        trained = time.monotonic()
        note = kept.Note(
            place.name,
            run,
            shlex.join(settings(study, run).arguments),
            outcome,
            terms=kept.terms(study, run),
            data=data_of(requested),
        )
        if outcome == "finished":
            try:
                note = scored(study, run, folder, note)
            except FloatingPointError:
                note = replace(note, outcome="diverged")
        if note.outcome == "finished" and run.seed <= study.analyze and not run.is_tuning:
            analyze(folder)
        seconds = folder.training_summary().train_seconds or trained - begun
        kept.keep(folder, replace(note, seconds=round(seconds + time.monotonic() - trained, 1)), target)
        if not weights:
            shutil.rmtree(folder.path)
    (place.work / f"{run.name}.lock").unlink(missing_ok=True)


def data_of(requested: launch.Request) -> str:
    """Return the digest of the data folder of a training."""
    return kept.digest(Path(requested.command.data))


def has_diverged(run: Run) -> bool:
    """Return whether a failed training failed because loss or gradient were no finite numbers."""
    return compat.DIVERGED in children.last_lines(run.train_log)


def analyze(run: Run) -> None:
    """Let `fairseq-resid analyze` say what the model learned; its plots are drawn again from the figures."""
    code = children.run([sys.executable, "-m", "fairseq_resid", "analyze", str(run.path)])
    if code:
        raise ChildProcessError(f"fairseq-resid analyze {run.path} failed with exit code {code}")


def scored(study: Study, run: Planned, folder: Run, note: kept.Note) -> kept.Note:
    """Return the note with the scores of both models; they and what they are made of are left in the run folder.

    Raises: FloatingPointError if the weights are no finite numbers.
    """
    tuning = study.tuning
    last = tuning.average if run.is_tuning and tuning else study.average
    settings = replace(evaluation_settings.of(folder), last=last, epochs=None)
    if study.epochs and not run.is_tuning and len(folder.numbered("epoch")) >= study.epochs[1]:
        settings = replace(settings, epochs=study.epochs, are_epochs_required=True)
    valid, *jobs = [job.find(folder.path, None, settings, subset, False) for subset in ("valid", *study.all_tests)]
    nll = valid_nll(valid)
    if not all(map(math.isfinite, nll.values())):
        raise FloatingPointError
    note = replace(note, valid=nll, parameters=valid.parameters)
    if run.is_tuning:
        return note
    for one in jobs:
        evaluate.evaluate(one)
    of_images = [one for one in jobs if isinstance(one, images.ImageJob)]
    if of_images:
        return replace(note, scores={images.LAST: images_together(of_images)})
    of_text = [one for one in jobs if isinstance(one, job.Job)]
    models = (*of_text[0].averages(), "last")
    return replace(note, scores={name: together(study, of_text, name) for name in models})


def valid_nll(valid: job.Job | images.ImageJob) -> dict[str, float]:
    """Return the NLL on the valid set of every model of a run."""
    run = valid.run
    with run.lock():
        if isinstance(valid, images.ImageJob):
            return {images.LAST: statistics.fmean(one.nll for one in images.answers(valid))}
        models = evaluate.models_of(valid)
        return {name: likelihood.mean(evaluate.measure(valid, name, *files)) for name, files in models.items()}


def images_together(jobs: Sequence[images.ImageJob]) -> dict[str, Scored]:
    """Return the scores of an image model on several test sets as if they were one."""
    found = [one for each in jobs for one in images.read(images.answers_file(each.run, each.subset))]
    scores = {images.ERROR: images.error(found), images.NLL: statistics.fmean(one.nll for one in found)}
    return {name: Scored(round(value, 5), images.UNITS[name]) for name, value in scores.items()}


def together(study: Study, jobs: Sequence[job.Job], model: str) -> dict[str, Scored]:
    """Return a model's scores, each on the test sets of its measure as if they were one."""
    hypotheses: list[str] = []
    references: list[str] = []
    sentences: list[likelihood.Sentence] = []
    for one in jobs:
        translated = read_lines(one.run.decode / f"{one.subset}.{model}.hyp")
        statistics = scoring.statistics(translated, one.references, one.corpus.tokenize)
        lines = ("\t".join(map(str, row)) + "\n" for row in statistics)
        write_text(one.run.decode / f"{one.subset}.{model}.bleu", "".join(lines))
        if one.subset in study.tests_of("BLEU"):
            hypotheses += translated
            references += one.references
        if one.subset in study.tests_of("NLL"):
            sentences += likelihood.read(one.run.decode / f"{one.subset}.{model}.nll")
    found = {
        "NLL": scoring.Score(likelihood.mean(sentences), likelihood.UNIT),
        "BLEU": scoring.bleu(hypotheses, references, jobs[0].corpus.tokenize),
        "chrF": scoring.side_by_side(hypotheses, references, jobs[0].corpus.form)["chrF"],
    }
    return {name: Scored(round(score.value, 5), score.signature) for name, score in found.items()}
