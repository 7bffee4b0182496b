"""Score a run: average checkpoints, score every subset of the data, and write RUN/results.json and RUN/card.md.

The task (scoring/) decides which models are scored and how. Translation and captioning score the averages and the last
checkpoint: translation by BLEU and NLL, captioning by CIDEr, the other scores of the COCO tools and NLL. Image
classification scores the last checkpoint by its error and NLL. Finished outputs that were made from the same files with
the same settings are reused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import records
from ..cli import children, frame
from ..console import say
from ..export.engine import is_export
from ..fairseq_patches.dictionaries import add_flag
from ..files import write_text
from ..runs import settings
from ..runs.made_from import FileState, MadeFrom, is_current
from ..runs.run import Results, Run, RunRecord
from ..scoring.task import LAST, ScoringJob
from . import averaging, card, compare, exported
from .job import find_job

SUBSETS = ("valid", "test")


def make_averages(job: ScoringJob[Any]) -> None:
    for name, made_from in job.averages.items():
        make_average(job.checkpoint(name), made_from)


def make_average(output: Path, made_from: list[Path]) -> None:
    """Average these checkpoints unless the average is up to date; a JSON file next to it records its inputs."""
    note = output.with_suffix(".json")
    if is_current(output, note, [*made_from, output]):
        return
    inputs = MadeFrom.of(made_from)
    files = [str(file) for file in made_from]
    children.show(["fairseq-resid", "average", "--inputs", *files, "--output", str(output)])
    averaging.average(made_from, output)
    records.write(note, replace(inputs, files=[*inputs.files, FileState.of(output)]))


def evaluate(job: ScoringJob[Any]) -> Results:
    """Score one run on one subset, after averaging if its task has averages, and write the results."""
    run, data = job.run, job.data
    # A run that was not trained by fairseq-resid has no run.json.
    record = records.remembered(run.record, RunRecord)
    if record is not None and not record.finished:
        say(f"{run.path}: warning: training has not finished", file=sys.stderr)
    with run.lock() as lock:
        make_averages(job)
        unscored = Results(
            architecture=job.architecture,
            parameters=job.parameters,
            corpus=data.name,
            data=str(data.path),
            not_as_released=list(data.differences),
            unverified=list(data.unverified),
            preparation=data.preparation,
            subset=job.subset,
            training=run.training_summary(),
            is_training_data=job.is_training_data,
        )
        results, lines = job.task.score(job, unscored, lock)
        results = replace(results, test_set=job.task.test_set(results))
        records.write(run.results(job.subset), results)
    trained = " (training data)" if job.is_training_data else ""
    for line in lines:
        say(f"{run.path} {job.subset}{trained}: {line}")
    return results


def tell_spread(jobs: Sequence[ScoringJob[Any]]) -> None:
    """Print, for every subset, the spread of the scores of runs that differ only by seed."""
    for subset in dict.fromkeys(job.subset for job in jobs):
        scored = [compare.read_candidate(job.run.path, LAST, subset) for job in jobs if job.subset == subset]
        for line in compare.seeds(compare.with_distinct_names(scored)):
            say(line)


def write_card(run: Run, prog: str) -> None:
    file = run.file("card.md")
    try:
        write_text(file, card.card_of(run))
    except ValueError as error:  # the scores have already been written
        say(f"{prog}: warning: {file} not written: {error}", file=sys.stderr)
    else:
        say(f"{file}: all scores with their signatures")


@frame.command(
    "evaluate",
    "Average the last checkpoints of each run, decode the validation and test sets with fairseq-generate, using the "
    "average and the last checkpoint, score the translations with sacrebleu against the raw references, measure the "
    "NLL of the references, and write results.json and the card of the run. Captions are scored with pycocoevalcap. "
    "For image models, report the error of the last checkpoint, and its spread over runs that differ only by seed.",
    again="resumes",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder (--save-dir of fairseq-train), or an exported run",
    )
    add("--data", type=Path, help="data folder (default: the data that the run was trained on)")
    settings.add_flags(parser)
    add(
        "--as-published",
        action="store_true",
        help="fail if the text, averaging or decoding differs from that of the published score",
    )
    add(
        "--subset",
        action="append",
        metavar="NAME",
        help="subset of the data to score; repeatable (default: valid and test)",
    )
    add_flag(parser)
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    options = parser.parse_intermixed_args(argv)
    jobs = [
        find_job(path, options.data, settings.of(Run(path), options), subset, options.cpu)
        for path in options.runs
        if not is_export(path)
        for subset in options.subset or SUBSETS
    ]
    for job in jobs if options.as_published else ():
        if reasons := job.task.not_as_published(job):
            raise ValueError(f"--as-published: {job.run.path}: {'; '.join(reasons)}")
    for job in jobs:
        evaluate(job)
    for path in filter(is_export, options.runs):
        for subset in options.subset or SUBSETS:
            say(exported.score(path, subset, options.data, options))
    tell_spread([job for job in jobs if job.task.shows_spread])
    for run in dict.fromkeys(job.run for job in jobs):
        write_card(run, parser.prog)
