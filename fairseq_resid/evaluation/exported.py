"""Score an export: the BLEU of its engine's translations next to that of its run."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ..cli.progress import Progress
from ..data.text import folder as text_folder
from ..data.text.folder import Corpus
from ..export.engine import WRITER, Record, Search
from ..export.translator import Translator
from ..files import read_lines, sha256
from ..runs.made_from import MadeFrom
from ..runs.run import EVALUATE, Run
from ..scoring import translation_scores
from .translate import BUFFER

FLAGS = {"beam": "beam", "lenpen": "length_penalty", "max_len_a": "max_len_a", "max_len_b": "max_len_b"}


def score(folder: Path, subset: str, data: Path | None, given: argparse.Namespace) -> str:
    """Translate a subset of the data with an export; return the export's BLEU with its signature, and the run's.

    data: the data folder, by default the run's; given: options of `fairseq-resid evaluate`
    Raises: ValueError or OSError naming the file or flag and the problem.
    """
    for flag in ("last", "by", "epochs", "as_published"):
        if getattr(given, flag):
            raise ValueError(f"--{flag.replace('_', '-')}: {folder} is an export of one checkpoint; evaluate its run")
    translator = Translator(folder)
    record = translator.record
    direction = record.text.source, record.text.target
    Run(Path(record.run)).require_direction(folder, direction, WRITER)
    corpus = Corpus.read(data or Path(record.data), direction)
    text_folder.check(corpus.path)
    changed = {name: getattr(given, flag) for flag, name in FLAGS.items() if getattr(given, flag) is not None}
    translator.search = replace(translator.search, **changed)
    lines = read_lines(corpus.path / f"ref/{subset}.{corpus.source}")
    hypotheses: list[str] = []
    with Progress(f"decode {subset} with {record.engine}", len(lines), "sentences") as progress:
        for encoded in translator.encoded_batches(lines, BUFFER):
            hypotheses += translator.decode(encoded)
            progress.advance(len(encoded))
    bleu = translation_scores.bleu(hypotheses, corpus.references(subset), given.tokenize or corpus.tokenize)
    beside = of_run(record, subset, bleu.signature, corpus.path, translator.search)
    return f"{folder} {subset}: BLEU {bleu.score:.2f}  {bleu.signature}  {beside}"


def of_run(record: Record, subset: str, signature: str, data: Path, search: Search) -> str:
    """Return a phrase with the score that the exported checkpoint has in its run, or how to compute it.

    data, search: of the export's score; if the run's score has others, the scores are not comparable
    """
    run = Run(Path(record.run))
    model = {"averaged.pt": "averaged", "checkpoint_last.pt": "last"}.get(record.checkpoint)
    try:
        results = run.read_results(subset)
    except FileNotFoundError:
        return f"({EVALUATE} {run.path} scores the run)"
    if model is None or results.bleu is None:
        return f"({record.checkpoint} of the run has no score)"
    file, note = run.file(record.checkpoint), MadeFrom.read(run.file("averaged.json"))
    averaged = [one.file for one in note.files[:-1]] if note else []
    updates = run.training_summary().num_updates  # None without a log, for example if the folder contains scores only
    used = {flag: results.decoding.get(flag.replace("_", "-")) for flag in FLAGS}
    reasons = {
        "other data": not is_same_folder(data, Path(results.data or record.data)),
        "other decoding settings": any(float(used[flag] or "nan") != getattr(search, FLAGS[flag]) for flag in FLAGS),
        "training went on after the scoring": updates is not None and updates != results.training.num_updates,
        f"{record.checkpoint} has changed since it was scored": model == "averaged"
        and averaged != results.averaged_checkpoints,
        f"{record.checkpoint} has changed since the export": bool(record.sha256)
        and file.is_file()
        and sha256(file) != record.sha256,
    }
    if any(reasons.values()):
        return f"(not compared with the run: {', '.join(reason for reason, holds in reasons.items() if holds)})"
    shown = "" if results.signature == signature else f"  {results.signature}"
    return f"(fairseq, {record.checkpoint} of {run.name}: {results.bleu[model]:.2f}{shown})"


def is_same_folder(data: Path, said: Path) -> bool:
    """Return whether a data folder may be the one that results.json names, perhaps relative to another folder."""
    full = data.resolve()
    return full == said.resolve() or (not said.is_absolute() and full.parts[-len(said.parts) :] == said.parts)
