"""From a run folder to scores: average, NLL, decode valid and test, score, RUN/results.json, RUN/card.md.

An image model is not averaged, and has an error: images.py.

The averaged model and the single last checkpoint are decoded with stock fairseq-generate and scored against the raw
reference text; their NLL of the references is measured too. What is finished and made from the same files with the same
settings is not done again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import records
from ..cli import children, frame
from ..files import read_lines, write_text
from ..foreign import say
from ..runs import settings
from ..runs.run import ByModel, Fingerprint, Record, Results, Run, Scored
from . import averaging, card, compare, decoding, images, likelihood, published, scoring
from .images import ImageJob
from .job import Job, find

SUBSETS = ("valid", "test")


@dataclass(frozen=True)
class AverageNote:
    """averaged.json: the checkpoints that an average was made from, and the average."""

    inputs: list[Fingerprint]
    output: Fingerprint


@dataclass(frozen=True)
class DecodingNote:
    """decode/SUBSET.MODEL.json, SUBSET.MODEL.nll.json: all that the hypotheses, or the NLL, beside it depend on."""

    checkpoints: list[Fingerprint]
    data: str
    files: list[Fingerprint]
    settings: dict[str, str | bool | None]
    text: dict[str, str]


Models = dict[str, tuple[Path, list[Path]]]


def models_of(job: Job) -> Models:
    """Return every model of a run that is scored, its averages made: by name its file, and what it is made from."""
    run = job.run
    for name, made_from in job.averages().items():
        make_average(run.average(name), made_from)
    averages = {name: (run.average(name), made_from) for name, made_from in job.averages().items()}
    return {**averages, "last": (run.last, [run.last])}


def make_average(output: Path, made_from: list[Path]) -> None:
    """Make the average of these checkpoints, unless it is up to date; a JSON file beside it says what it is made of."""
    note = output.with_suffix(".json")
    inputs = [Fingerprint.of(file) for file in made_from]
    known = records.remembered(note, AverageNote)
    if output.is_file() and known == AverageNote(inputs, Fingerprint.of(output)):
        return
    files = [str(file) for file in made_from]
    children.show(["fairseq-resid", "average", "--inputs", *files, "--output", str(output)])
    averaging.average(made_from, output)
    records.write(note, AverageNote(inputs, Fingerprint.of(output)))


def depends_on(job: Job, made_from: list[Path], settings: dict[str, str | bool | None]) -> DecodingNote:
    """Return the note on what is made of a model and a part of the data with these settings."""
    return DecodingNote(
        [Fingerprint.of(file) for file in made_from],
        str(job.corpus.path.resolve()),
        [Fingerprint.of(file) for file in job.corpus.inputs(job.subset)],
        {**settings, "cpu": job.cpu},
        {"form": job.corpus.form.form},
    )


def is_kept(file: Path, note: Path, mine: DecodingNote) -> bool:
    """Return whether a file is there and was made from the same files with the same settings; say so."""
    kept = file.is_file() and records.remembered(note, DecodingNote) == mine
    if kept:
        say(f"{file}: made from the same files with the same settings, kept")
    return kept


def translate(job: Job, name: str, checkpoint: Path, made_from: list[Path], lock: int | None = None) -> list[str]:
    """Return the hypotheses of one model, from RUN/decode if they are there and of the same inputs and settings.

    Raises: DecodingError if fairseq-generate fails or leaves out a sentence.
    """
    log, hypotheses, note = (job.run.decode / f"{job.subset}.{name}.{kind}" for kind in ("log", "hyp", "json"))
    mine = depends_on(job, made_from, {**job.settings.decoding, "post-process": job.corpus.post_process})
    if is_kept(hypotheses, note, mine):
        return read_lines(hypotheses)
    command = decoding.command(
        job.corpus.path, checkpoint, job.subset, job.corpus.post_process, job.cpu, job.settings.decoding
    )
    decoding.decode(command, log, lock, len(job.references))
    lines = [job.corpus.form.restore(line) for line in decoding.read_hypotheses(log)]
    if len(lines) != len(job.references):
        reference = job.corpus.reference(job.subset)
        raise decoding.DecodingError(f"{log}: {len(lines)} hypotheses, but {reference} has {len(job.references)} lines")
    write_text(hypotheses, "".join(f"{line}\n" for line in lines))
    records.write(note, mine)
    return lines


def measure(job: Job, name: str, checkpoint: Path, made_from: list[Path]) -> list[likelihood.Sentence]:
    """Return one model's NLL of every reference, from RUN/decode if it is there and of the same inputs."""
    file, note = (job.run.decode / f"{job.subset}.{name}.{kind}" for kind in ("nll", "nll.json"))
    mine = depends_on(job, made_from, {})
    if is_kept(file, note, mine):
        return likelihood.read(file)
    sentences = likelihood.measure(job, checkpoint)
    file.parent.mkdir(exist_ok=True)
    likelihood.write(file, sentences)
    records.write(note, mine)
    return sentences


def evaluate(job: Job | ImageJob) -> Results:
    """Score one run, after averaging and decoding if it translates, and write its results."""
    # A run that another command trained has no run.json.
    record = records.remembered(job.run.record, Record)
    if record is not None and not record.finished:
        say(f"{job.run.path}: warning: its training has not finished", file=sys.stderr)
    with job.run.lock() as lock:
        return images.score(job) if isinstance(job, ImageJob) else score(job, lock)


def score(job: Job, lock: int) -> Results:
    """Do what `evaluate` says, in a run folder that nobody else works in."""
    run, corpus, models = job.run, job.corpus, models_of(job)
    is_published = not published.differences(job)
    scores, beside = {}, {}
    for name, (checkpoint, made_from) in models.items():
        hypotheses = translate(job, name, checkpoint, made_from, lock)
        scores[name] = scoring.bleu(hypotheses, job.references, corpus.tokenize)
        value = likelihood.mean(measure(job, name, checkpoint, made_from))
        beside[name] = {
            **({published.LABEL: scores[name]} if is_published else {}),
            **scoring.side_by_side(hypotheses, job.references, corpus.form),
            likelihood.LABEL: scoring.Score(value, likelihood.UNIT),
        }
    texts = [str(run.decode / f"{job.subset}.{name}.hyp") for name in models]
    children.show(["sacrebleu", str(corpus.reference(job.subset)), "-i", *texts, "-tok", corpus.tokenize])
    results = Results(
        architecture=job.architecture,
        parameters=job.parameters,
        bleu=ByModel(**{name: round(scores[name].value, 4) for name in ("averaged", "last")}),
        signature=scores["averaged"].signature,
        scores={
            name: {label: Scored(round(score.value, 4), score.signature) for label, score in by_label.items()}
            for name, by_label in beside.items()
        },
        corpus=corpus.name,
        data=str(corpus.path),
        not_as_released=list(corpus.differences),
        unverified=list(corpus.unverified),
        preparation=corpus.preparation,
        subset=job.subset,
        sentences=len(job.references),
        averaged_checkpoints=[file.name for file in job.checkpoints],
        decoding={**job.settings.decoding, "post-process": corpus.post_process},
        training=run.training_summary(),
    )
    records.write(run.results(job.subset), results)
    bleu = ", ".join(f"{name} {score.value:.2f}" for name, score in scores.items())
    named, beside_it = (f"BLEU {published.LABEL}", published.beside(job)) if is_published else ("BLEU", "")
    say(f"{run.path} {job.subset}: {named} {bleu}  {results.signature}  {beside_it}".rstrip())
    nll = ", ".join(f"{name} {by_label[likelihood.LABEL].value:.4f}" for name, by_label in beside.items())
    say(f"{run.path} {job.subset}: NLL {nll}  {likelihood.UNIT}")
    return results


@frame.command(
    "evaluate",
    "Average the last checkpoints of each run, decode valid and test set with the average and the single last "
    "checkpoint by fairseq-generate, score them with sacrebleu against the raw references, measure the NLL of the "
    "references, write results.json and the card of the run. Of an image model: the error of the last checkpoint, and "
    "its interval over runs.",
    again="goes on",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Command line of scripts/evaluate.sh."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, as fairseq-train's --save-dir")
    add("--data", type=Path, help="the data folder (default: the one that the run was trained on)")
    settings.add_flags(parser)
    add(
        "--as-published",
        action="store_true",
        help="refuse a run whose text, averaging or decoding differs from that of a published score",
    )
    add(
        "--subset",
        action="append",
        metavar="NAME",
        help="a part of the data to translate, may be given again (default: valid and test)",
    )
    add("--cpu", action="store_true", help="decode on the CPU even if there is a GPU")
    options = parser.parse_intermixed_args(argv)
    jobs = [
        find(path, options.data, settings.of(Run(path), options), subset, options.cpu)
        for path in options.runs
        for subset in options.subset or SUBSETS
    ]
    if options.as_published:
        for job in jobs:
            wrong = ["an image model"] if isinstance(job, ImageJob) else published.differences(job)
            if wrong:
                raise ValueError(f"--as-published: {job.run.path}: {'; '.join(wrong)}")
    for job in jobs:
        evaluate(job)
    of_images = [job for job in jobs if isinstance(job, ImageJob)]
    for subset in dict.fromkeys(job.subset for job in of_images):
        for line in compare.image_seeds([job.run.path for job in of_images if job.subset == subset], subset):
            say(line)
    for run in dict.fromkeys(job.run for job in jobs):
        try:
            write_text(run.card, card.write(run))
        except ValueError as error:  # the scores stand all the same
            say(f"{parser.prog}: warning: no {run.card}: {error}", file=sys.stderr)
        else:
            say(f"{run.card}: every score, with its signature")
