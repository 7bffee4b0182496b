"""From a run folder to BLEU: average, decode dev and test, score, RUN/results.json, RUN/card.md.

The averaged model and the single last checkpoint are decoded with stock fairseq-generate and scored against the raw
reference text. What is finished and made from the same files with the same settings is not done again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..commands import children
from ..compat import BETTER_TRANSFORMER_COPIES
from ..folders import data as data_folder
from ..folders.data import Corpus, find_data, setting
from ..folders.files import read_lines, write_text
from ..folders.run import Numbering, Run
from . import averaging, card, decoding, scoring

SUBSETS = ("valid", "test")
# fairseq's dictionary has four symbols before those in its file: <s>, <pad>, </s>, <unk>.
SPECIAL = 4
# Not parameters: fairseq keeps these small marks among the weights.
BUFFER = re.compile(r"(^|\.)(version|_float_tensor)$")
# Saved, never trained.
DEAD_COPY = re.compile(rf"\.layers\.\d+\.({'|'.join(BETTER_TRANSFORMER_COPIES)})$")


@dataclass(frozen=True)
class Job:
    """One run's evaluation, its inputs found and checked."""

    run: Run
    corpus: Corpus
    subset: str
    references: list[str]
    checkpoints: list[Path]
    architecture: str
    parameters: int
    cpu: bool


def fingerprint(path: Path) -> dict[str, object]:
    """Return a file's fingerprint: name, size, time of change."""
    status = path.stat()
    return {"file": path.name, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def count_parameters(model: dict[str, Any]) -> int:
    """Return the number of parameters in a state dict: each shared one once, without buffers and dead copies."""
    return sum(
        tensor.numel()
        for tensor in {
            averaging.memory_of(tensor): tensor
            for name, tensor in model.items()
            if isinstance(tensor, torch.Tensor) and not BUFFER.search(name) and not DEAD_COPY.search(name)
        }.values()
    )


def architecture(state: dict[str, Any]) -> str:
    """Return the architecture a checkpoint names, with the residual where that is chosen by --residual."""
    model = (state.get("cfg") or {}).get("model", state.get("args"))
    name = str(setting(model, "arch") or setting(model, "_name"))
    residual = setting(model, "residual")
    return f"{name} --residual {residual}" if residual and name.startswith("transformer_resid") else name


def check_dictionaries(run: Run, state: dict[str, Any], corpus: Corpus) -> None:
    """Check that a data folder's dictionaries are those that a run was trained with.

    Raises: ValueError naming the dictionary that is missing, or has other words than the model or its own data folder.
    """
    try:
        trained_on = find_data(run, state)
    except ValueError:  # not there any more: sizes alone can be compared
        trained_on = corpus.path
    for language, embedding in (
        (corpus.source, "encoder.embed_tokens.weight"),
        (corpus.target, "decoder.embed_tokens.weight"),
    ):
        file = corpus.path / f"dict.{language}.txt"
        own = trained_on / file.name
        words = read_lines(file)
        rows = state["model"][embedding].size(0) if embedding in state["model"] else len(words) + SPECIAL
        if len(words) + SPECIAL != rows:
            raise ValueError(f"{file}: {len(words):,} words, but {run.last} was trained with {rows - SPECIAL:,}")
        if own.is_file() and read_lines(own) != words:
            raise ValueError(f"{file}: other words than {own}, which {run.path} was trained with")


def prepare(path: Path, data: Path | None, last: int, by: Numbering | None, subset: str, cpu: bool) -> Job:
    """Find and check everything that the evaluation of one run needs, before anything is computed.

    Raises: ValueError or OSError naming what is missing.
    """
    if not path.is_dir():
        raise ValueError(f"{path}: no such run folder")
    run = Run(path)
    checkpoints = averaging.find(path, last, by)
    if not run.last.is_file():
        raise ValueError(f"{run.last}: no such checkpoint")
    state = averaging.load(run.last)
    corpus = Corpus.read(data or find_data(run, state))
    data_folder.check(corpus.path)
    check_dictionaries(run, state, corpus)
    reference = corpus.reference(subset)
    if not reference.is_file():
        raise ValueError(f"{reference}: no such reference text; --subset names the parts to translate")
    if not any(file.suffix == ".bin" for file in corpus.inputs(subset)):
        raise ValueError(f"{corpus.path}: holds no binarised {subset} set")
    references = read_lines(reference)
    return Job(run, corpus, subset, references, checkpoints, architecture(state), count_parameters(state["model"]), cpu)


def make_average(run: Run, made_from: list[Path]) -> None:
    """Make RUN/averaged.pt of these checkpoints, unless it is up to date; RUN/averaged.json says of which it is."""
    note = run.averaged.with_suffix(".json")
    inputs = [fingerprint(file) for file in made_from]
    try:
        finished = json.loads(note.read_text(encoding="utf-8")) == {
            "inputs": inputs,
            "output": fingerprint(run.averaged),
        }
    except (OSError, ValueError):
        finished = False
    if not finished:
        files = [str(file) for file in made_from]
        children.show(["scripts/average_checkpoints.py", "--inputs", *files, "--output", str(run.averaged)])
        averaging.average(made_from, run.averaged)
        write_text(note, json.dumps({"inputs": inputs, "output": fingerprint(run.averaged)}, indent=2) + "\n")


def translate(job: Job, name: str, checkpoint: Path, made_from: list[Path], lock: int | None = None) -> list[str]:
    """Return the hypotheses of one model, from RUN/decode where they are there and of the same inputs and settings.

    Raises: DecodingError where fairseq-generate fails or leaves out a sentence.
    """
    log, hypotheses, note = (job.run.decode / f"{job.subset}.{name}.{kind}" for kind in ("log", "hyp", "json"))
    inputs = {
        "checkpoints": [fingerprint(file) for file in made_from],
        "data": str(job.corpus.path.resolve()),
        "files": [fingerprint(file) for file in job.corpus.inputs(job.subset)],
        "settings": {**decoding.SETTINGS, "post-process": job.corpus.post_process, "cpu": job.cpu},
        "text": {"form": job.corpus.form.form},
    }
    try:
        finished = json.loads(note.read_text(encoding="utf-8")) == inputs
    except (OSError, ValueError):
        finished = False
    if finished and hypotheses.is_file():
        print(f"{hypotheses}: made from the same files with the same settings, kept")
        return read_lines(hypotheses)
    words = decoding.command(job.corpus.path, checkpoint, job.subset, job.corpus.post_process, job.cpu)
    decoding.decode(words, log, lock)
    lines = [job.corpus.form.restore(line) for line in decoding.read_hypotheses(log)]
    if len(lines) != len(job.references):
        reference = job.corpus.reference(job.subset)
        raise decoding.DecodingError(f"{log}: {len(lines)} hypotheses, but {reference} has {len(job.references)} lines")
    write_text(hypotheses, "".join(f"{line}\n" for line in lines))
    write_text(note, json.dumps(inputs, indent=2) + "\n")
    return lines


def evaluate(job: Job) -> dict[str, Any]:
    """Average, decode and score one run, and write its results."""
    run = job.run
    try:
        finished = json.loads(run.record.read_text(encoding="utf-8"))["finished"]
    except (OSError, ValueError, KeyError, TypeError):
        finished = True  # not trained by scripts/train.sh: nothing is known
    if not finished:
        print(f"{run.path}: warning: its training has not finished", file=sys.stderr)
    with run.lock() as lock:
        return score(job, lock)


def score(job: Job, lock: int) -> dict[str, Any]:
    """Do what `evaluate` says, in a run folder that nobody else works in."""
    run, corpus = job.run, job.corpus
    make_average(run, job.checkpoints)
    models = {"averaged": (run.averaged, job.checkpoints), "last": (run.last, [run.last])}
    scores, beside = {}, {}
    for name, (checkpoint, made_from) in models.items():
        hypotheses = translate(job, name, checkpoint, made_from, lock)
        text = job.run.decode / f"{job.subset}.{name}.hyp"
        children.show(["sacrebleu", str(corpus.reference(job.subset)), "-i", str(text), "-tok", corpus.tokenize])
        scores[name] = scoring.bleu(hypotheses, job.references, corpus.tokenize)
        beside[name] = scoring.side_by_side(hypotheses, job.references, corpus.form)
    results = {
        "architecture": job.architecture,
        "parameters": job.parameters,
        "bleu": {name: round(score.value, 4) for name, score in scores.items()},
        "signature": scores["averaged"].signature,
        "scores": {
            name: {
                label: {"score": round(score.value, 4), "signature": score.signature} for label, score in found.items()
            }
            for name, found in beside.items()
        },
        "corpus": corpus.name,
        "data": str(corpus.path),
        "not_as_released": list(corpus.differences),
        "unverified": list(corpus.unverified),
        "preparation": corpus.preparation,
        "subset": job.subset,
        "sentences": len(job.references),
        "averaged_checkpoints": [file.name for file in job.checkpoints],
        "decoding": {**decoding.SETTINGS, "post-process": corpus.post_process},
        "training": asdict(run.training_summary()),
    }
    write_text(run.results(job.subset), json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    for name, score in scores.items():
        print(f"{run.path} {job.subset} {name:8} BLEU {score.value:.2f}  {score.signature}", flush=True)
        for label, other in beside[name].items():
            print(f"    {label:26} {other.value:6.2f}  {other.signature}", flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 2 for bad input, 1 where decoding failed."""
    parser = argparse.ArgumentParser(
        prog="evaluate.sh",
        description="Average the last checkpoints of each run, decode dev and test set with the average and the single "
        "last checkpoint by fairseq-generate, score them with sacrebleu against the raw references, write results.json "
        "and the card of the run.",
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, as fairseq-train's --save-dir")
    add("--data", type=Path, help="the data folder (default: the one that the run was trained on)")
    add("--last", type=int, default=10, metavar="N", help="average the last N numbered checkpoints (default 10)")
    add("--by", choices=("epoch", "update"), help="average those named checkpointN.pt, or checkpoint_E_U.pt")
    add(
        "--subset",
        action="append",
        metavar="NAME",
        help="a part of the data to translate, may be given again (default: valid and test)",
    )
    add("--cpu", action="store_true", help="decode on the CPU even where there is a GPU")
    options = parser.parse_intermixed_args(arguments)
    try:
        jobs = [
            prepare(path, options.data, options.last, options.by, subset, options.cpu)
            for path in options.runs
            for subset in options.subset or SUBSETS
        ]
        for job in jobs:
            evaluate(job)
        for run in dict.fromkeys(job.run for job in jobs):
            try:
                write_text(run.card, card.write(run))
            except ValueError as error:  # the scores stand all the same
                print(f"{parser.prog}: warning: no {run.card}: {error}", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, decoding.DecodingError) else 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
