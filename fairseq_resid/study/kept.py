"""The kept files of a study's run: a run folder without weights, small enough for a repository.

KEPT/RUN/study.json                        setting, arm, value and seed of the run, its flags, outcome and scores
KEPT/RUN/run.json, train.log.gz            training: command, machine, versions; all records of its log
KEPT/RUN/results*.json                     evaluation results on each test set
KEPT/RUN/decode/SUBSET.MODEL.nll.gz        NLL and number of tokens of every reference sentence
KEPT/RUN/decode/SUBSET.averaged.hyp.gz     translations or captions
KEPT/RUN/decode/SUBSET.averaged.bleu.gz    BLEU statistics of every sentence: lengths, n-grams matched, n-grams
KEPT/RUN/decode/SUBSET.epochs*.{hyp,bleu}.gz
                                           the same for the average of fixed epochs, if the study has one
KEPT/RUN/decode/SUBSET.averaged.cider.gz   CIDEr and number of references of every captioned image
KEPT/RUN/decode/SUBSET.last.images.gz      class, predicted class and NLL of every classified image
KEPT/RUN/analysis/analysis.json            coefficients, norms and gradients of the sites, if the run was analysed
"""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .. import records
from ..files import pack, replacing
from ..runs import recipe
from ..runs.run import Run, Scored
from ..runs.training_command import PLACE_FLAGS, TrainingCommand
from ..runs.training_log import SESSION, log_record
from ..scoring import kinds
from .plan import FORMER_GATE_STARTS, Planned, Study, flags_of, with_gate_starts

Outcome = Literal["finished", "diverged"]


@dataclass(frozen=True)
class Note:
    """study.json: one run of a study.

    flags: all flags that do not depend on the machine, as on a command line
    scores: over all test sets together, by model and measure
    valid: NLL on the validation set, by model; seconds: duration of training and evaluation
    terms: the study file's settings for scoring; data: a digest of dictionaries and reference texts
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
        """The NLL on the validation set, of the averaged model if there is one; infinite if training diverged."""
        return self.valid.get("averaged", self.valid.get("last", math.inf))


def nll_of(notes: Mapping[str, Note]) -> dict[Planned, float]:
    """Return the validation NLL of every kept run; it is infinite for a run that diverged."""
    return {note.run: note.nll for note in notes.values()}


def note_file(folder: Path) -> Path:
    return folder / "study.json"


def keep_run(run: Run, note: Note, folder: Path) -> None:
    """Copy the kept files of a run into `folder`, atomically."""
    with replacing(folder) as partial:
        if partial.exists():  # from a run that was killed at this point
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        record = run.read_record()
        if record is not None:
            command = TrainingCommand.parse(record.command).without(PLACE_FLAGS).argv  # without local folders
            records.write(Run(partial).record, replace(record, command=command))
        write_log(run, Run(partial))
        for path in run.files("results*.json"):
            shutil.copyfile(path, partial / path.name)
        for pattern in (pattern for task in kinds.TASKS for pattern in task.studied.kept_files):
            for path in run.files(f"decode/{pattern}"):
                pack(path, Run(partial).decode)
        analysis = run.file("analysis/analysis.json")
        if analysis.is_file():
            (partial / "analysis").mkdir()
            shutil.copyfile(analysis, partial / "analysis" / analysis.name)
        records.write(note_file(partial), note)
        if folder.exists():
            shutil.rmtree(folder)


def write_log(run: Run, into: Run) -> None:
    """Write the lines of train.log that contain a record; the other lines only describe the machine."""
    plain = into.train_log
    with plain.open("w", encoding="utf-8") as log:
        for line in run.log_lines():
            if SESSION in line:  # keep its time: the gap between two sessions is not training time
                log.write(f"{line[:19]} | INFO | {SESSION}}}\n")
            elif log_record(line) is not None:
                log.write(line)
    pack(plain, into.path)
    plain.unlink()


def scoring_terms(study: Study, run: Planned) -> dict[str, Any]:
    """Return the settings for scoring in a study file, which must be the same for all runs."""
    decoding = recipe.evaluation(study.recipe)
    found: dict[str, Any] = {"evaluate": decoding} if decoding else {}
    average = {"average": study.averaged(run.is_tuning)} if study.task.has_averages else {}
    if run.is_tuning and study.tuning is not None:
        return {**found, **average, "seed": study.tuning.seed}
    if study.epochs:
        found["epochs"] = [one if isinstance(one, int) else list(one) for one in study.epochs]
    by_measure = {measure: list(study.tests_of(measure)) for measure in study.task.studied.measures}
    tests = by_measure if isinstance(study.tests, dict) else list(study.tests)
    return {**found, **average, "measure": study.measure, "tests": tests}


def read_notes(folder: Path, study: str) -> dict[str, Note]:
    """Return the notes of all kept runs of a study, by run name.

    Raises: ValueError naming the folder of another study's run or of a run scored on other data, or the damaged file.
    """
    found: dict[str, Note] = {}
    for path in sorted(folder.glob("*/study.json")):
        if path.parent.name.endswith(".partial"):  # a run is being copied, or was killed during the copy
            continue
        try:
            note = records.read(path, Note, "fairseq-resid study")
        except FileNotFoundError:  # just renamed
            continue
        if note.study != study or note.run.name != path.parent.name:
            raise ValueError(f"{path.parent}: contains {note.run.name} of the study {note.study}, not of {study}")
        other = next((name for name, it in found.items() if note.data and it.data not in ("", note.data)), None)
        if other is not None:
            raise ValueError(
                f"{path.parent}: was scored on different data than {folder / other}: "
                "its dictionaries or references differ"
            )
        found[note.run.name] = note
    return found


def load_notes(study: Study, file: Path, folder: Path) -> dict[str, Note]:
    """Return the notes of the kept runs of a study file.

    Raises: see `read_notes`; ValueError naming the run whose flags or scoring differ from those in the study file.
    """
    notes = read_notes(folder, file.stem)
    for name, note in notes.items():
        if note.run.arm not in study.arms or note.run.setting not in study.settings:
            continue  # removed from the file
        before = with_gate_starts(TrainingCommand.parse(shlex.split(note.flags)), FORMER_GATE_STARTS)
        try:
            differences = before.changes(flags_of(study, note.run))
        except ValueError as error:
            raise ValueError(f"{file}: {note.run.arm} in {note.run.setting}: {error}") from None
        now = scoring_terms(study, note.run) if note.terms else {}
        differences += [
            f"{key} was {note.terms.get(key)}, now {now.get(key)}"
            for key in {**note.terms, **now}
            if note.terms.get(key) != now.get(key)
        ]
        if differences:
            listed = "; ".join(differences)
            raise ValueError(
                f"{folder / name}: was made with different settings ({listed}); restore them in {file}, or remove that "
                "folder"
            )
    return notes
