"""What a study keeps of a run: a run folder without weights, small enough for a repository.

KEPT/RUN/study.json                        the run's place in the study, its flags, how it ended, its scores
KEPT/RUN/run.json, train.log.gz            the training: command, machine, versions; every record of its log
KEPT/RUN/results*.json                     what evaluation found on each test set
KEPT/RUN/decode/SUBSET.MODEL.nll.gz        NLL and tokens of every reference sentence
KEPT/RUN/decode/SUBSET.averaged.hyp.gz     translations
KEPT/RUN/decode/SUBSET.averaged.bleu.gz    of every sentence what BLEU adds up: lengths, n-grams matched, n-grams
KEPT/RUN/decode/SUBSET.epochs*.{hyp,bleu}.gz
                                           both of the average of fixed epochs, if the study has one
KEPT/RUN/decode/SUBSET.last.images.gz      of every image its class, the class that it was given, NLL
KEPT/RUN/analysis/analysis.json            what the sites learned, where the run was analysed
"""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .. import records
from ..files import MOST_NUMBER, copy, pack, replacing
from ..foreign import printable
from ..runs import launch, recipe
from ..runs.run import MOST_SECONDS, SESSION, Run, RunRecord, Scored, log_record
from ..runs.training_command import TrainingCommand
from ..tasks import kinds
from .plan import Planned, Study, flags_of

Outcome = Literal["finished", "diverged"]
MOST_PARAMETERS = 1e15


@dataclass(frozen=True)
class Note:
    """study.json: one run of a study.

    flags: all that do not depend on the machine, as on a command line
    scores: over all test sets together, by model and measure
    valid: NLL on the valid set, by model; seconds: of training and evaluation
    terms: what the study file said of the measure; data: a digest of dictionaries and reference texts
    """

    study: str
    run: Planned
    flags: str
    outcome: Outcome
    valid: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, Scored]] = field(default_factory=dict)
    seconds: float | None = None
    parameters: int | None = None
    terms: dict[str, Any] = field(default_factory=dict)
    data: str = ""

    @property
    def nll(self) -> float:
        """The NLL on the valid set, of the averaged model if there is one; infinite if the training diverged."""
        return self.valid.get("averaged", self.valid.get("last", math.inf))


def note_file(folder: Path) -> Path:
    """Return the path of a run's study.json."""
    return folder / "study.json"


def keep_run(run: Run, note: Note, folder: Path) -> None:
    """Put what is kept of a run into FOLDER, whole or not at all."""
    with replacing(folder) as partial:
        if partial.exists():  # of a run that was killed here
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        record = run.read_record()
        if record is not None:
            records.write(Run(partial).record, replace(record, command=command_without_paths(record)))
        write_log(run, Run(partial))
        for path in sorted(run.path.glob("results*.json")):
            copy(path, partial / path.name)
        for pattern in (pattern for task in kinds.TASKS for pattern in task.kept_files):
            for path in sorted(run.decode.glob(pattern)):
                pack(path, Run(partial).decode)
        analysis = run.path / "analysis" / "analysis.json"
        if analysis.is_file():
            (partial / "analysis").mkdir()
            copy(analysis, partial / "analysis" / analysis.name)
        records.write(note_file(partial), note)
        if folder.exists():
            shutil.rmtree(folder)


def command_without_paths(record: RunRecord) -> list[str]:
    """Return a training's command without the folders of the machine that it ran on."""
    return TrainingCommand.parse(record.command).without(launch.PLACE_FLAGS).argv


def write_log(run: Run, into: Run) -> None:
    """Write the lines of train.log that hold a record; what else fairseq says is of the machine."""
    plain = into.train_log
    with plain.open("w", encoding="utf-8") as log:
        for line in run.log_lines():
            if SESSION in line:  # its time is needed: what lies between two sessions is no training
                log.write(f"{line[:19]} | INFO | {SESSION}}}\n")
            elif log_record(line) is not None:
                log.write(line)
    pack(plain, into.path)
    plain.unlink()


def scoring_terms(study: Study, run: Planned) -> dict[str, Any]:
    """Return what a study file says of how a run is scored: no run may be scored otherwise than the others."""
    tuning = study.tuning
    averages = study.task.has_averages
    by_measure = {measure: list(study.tests_of(measure)) for measure in study.task.measures}
    tests = by_measure if isinstance(study.tests, dict) else list(study.tests)
    decoding = recipe.evaluation(study.recipe)
    found: dict[str, Any] = {"evaluate": decoding} if decoding else {}
    if run.is_tuning and tuning is not None:
        return {**found, **({"average": tuning.average} if averages else {}), "seed": tuning.seed}
    if study.epochs is not None:
        found["epochs"] = list(study.epochs)
    return {**found, **({"average": study.average} if averages else {}), "measure": study.measure, "tests": tests}


def read_notes(folder: Path, study: str) -> dict[str, Note]:
    """Return the note of every run that is kept of a study, by the run's name.

    Raises: ValueError naming the folder that belongs to another study or another data folder, or the damaged file.
    """
    found: dict[str, Note] = {}
    for path in sorted(folder.glob("*/study.json")):
        if path.parent.name.endswith(".partial"):  # of a run that is being kept, or was killed then
            continue
        try:
            note = records.read(path, Note, "fairseq-resid study")
        except FileNotFoundError:  # it has just been renamed
            continue
        if note.study != study or note.run.name != path.parent.name:
            raise ValueError(
                f"{path.parent}: holds {printable(note.run.name)} of the study {printable(note.study)}, not of {study}"
            )
        other = next((name for name, it in found.items() if note.data and it.data not in ("", note.data)), None)
        if other is not None:
            raise ValueError(
                f"{path.parent}: was scored on different data than {folder / other}: other words or references"
            )
        if wrong := next(faults(note), None):
            raise ValueError(f"{path}: damaged, or not written by fairseq-resid study: {printable(wrong)}")
        found[note.run.name] = note
    return found


def faults(note: Note) -> Iterator[str]:
    """Yield a line for each invalid field of a note: the field, its value, the allowed values."""
    numbers = {f"valid: {model}": value for model, value in note.valid.items()}
    numbers |= {
        f"scores: {model}: {measure}": scored.score
        for model, scores in note.scores.items()
        for measure, scored in scores.items()
    }
    for where, value in numbers.items():
        if not abs(value) <= MOST_NUMBER:  # nor NaN
            yield f"{where}: {value:g}: must be a number from {-MOST_NUMBER:g} to {MOST_NUMBER:g}"
    sizes = {"seconds": (note.seconds, MOST_SECONDS), "parameters": (note.parameters, MOST_PARAMETERS)}
    for where, (number, most) in sizes.items():
        if number is not None and not 0 <= number <= most:
            yield f"{where}: {number}: must be 0 to {most:g}"


def check_scores(study: Study, notes: Mapping[str, Note], folder: Path) -> None:
    """Check that the runs of a study that finished have the scores that its results are made of.

    Raises: ValueError naming the file, the model and the measure.
    """
    model = study.task.best
    for name, note in notes.items():
        scores = note.scores.get(model, {})
        missing = [measure for measure in study.task.measures if measure not in scores]
        if missing and note.outcome == "finished" and not note.run.is_tuning:
            raise ValueError(f"{note_file(folder / name)}: scores: {model} has no {missing[0]}")


def load_notes(study: Study, file: Path, folder: Path) -> dict[str, Note]:
    """Return the notes of the runs that are kept of a study file.

    Raises: what `read` raises; ValueError naming the run that was made, or scored, otherwise than the file says now.
    """
    notes = read_notes(folder, file.stem)
    check_scores(study, notes, folder)
    for name, note in notes.items():
        if note.run.arm not in study.arms or note.run.setting not in study.settings:
            continue  # the file does not have it any more
        differences = TrainingCommand.parse(shlex.split(note.flags)).changes(flags_of(study, note.run))
        now = scoring_terms(study, note.run)
        differences += [
            f"{key} was {note.terms[key]}, now {now.get(key)}" for key in note.terms if note.terms[key] != now.get(key)
        ]
        if differences:
            listed = printable("; ".join(differences))
            raise ValueError(
                f"{folder / name}: was made with different settings ({listed}); restore them in {file}, or remove that "
                "folder"
            )
    return notes
