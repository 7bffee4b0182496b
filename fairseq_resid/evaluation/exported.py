"""Score an export: the BLEU of its engine's translations next to that of its run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..cli.progress import Progress
from ..data.text import folder as text_folder
from ..data.text.folder import Corpus, check_dictionaries
from ..export import translator
from ..export.engine import WRITER, Record, Search, check_lengths, load, read
from ..files import sha256
from ..runs.made_from import MadeFrom
from ..runs.run import EVALUATE, Run
from ..scoring import translation_scores

TOGETHER = 512  # sentences between progress reports


def score(folder: Path, subset: str, data: Path | None, given: argparse.Namespace) -> str:
    """Translate a subset of the data with an export; return the export's BLEU with its signature, and the run's.

    data: the data folder, by default the run's; given: options of `fairseq-resid evaluate`
    Raises: ValueError or OSError naming the file or flag and the problem.
    """
    record = read(folder)
    for flag in ("last", "by", "epochs", "as_published"):
        if getattr(given, flag):
            raise ValueError(f"--{flag.replace('_', '-')}: {folder} is an export of one checkpoint; evaluate its run")
    Run(Path(record.run)).require_direction(folder, (record.text.source, record.text.target), WRITER)
    text, engine = translator.converter(folder, record), load(folder)
    path = data or Path(record.data)
    corpus = Corpus.read(path, (record.text.source, record.text.target))
    corpus = replace(corpus, tokenize=given.tokenize or corpus.tokenize)
    text_folder.check(path)
    check_dictionaries(path)
    check_same_subwords(folder, record, corpus)
    sources = source_subwords(corpus, subset)
    check_lengths(sources, record.longest[0], "source")
    search = search_of(record, given)
    hypotheses, blank = [""] * len(sources), corpus.blank_lines(subset)
    filled = [number for number in range(len(sources)) if number not in blank]
    with Progress(f"decode {subset} with {record.engine}", len(filled), "sentences") as progress:
        for start in range(0, len(filled), TOGETHER):
            numbers = filled[start : start + TOGETHER]
            found = engine.translate([sources[number] for number in numbers], search)
            for number, best in zip(numbers, found, strict=True):
                hypotheses[number] = corpus.form.restore(text.segmenter.join(" ".join(best[0].tokens)))
            progress.advance(len(found))
    bleu = translation_scores.bleu(hypotheses, corpus.references(subset), corpus.tokenize)
    beside = of_run(record, subset, bleu.signature, path, search)
    return f"{folder} {subset}: BLEU {bleu.score:.2f}  {bleu.signature}  {beside}"


def check_same_subwords(folder: Path, record: Record, corpus: Corpus) -> None:
    """Check that a data folder is segmented by the subword model of the export.

    Raises: ValueError naming both files.
    """
    if record.text.model is None or corpus.restore.model is None:
        return
    own, theirs = folder / record.text.model, corpus.path / corpus.restore.model
    if sha256(own) != sha256(theirs):
        raise ValueError(f"{theirs}: differs from {own}, whose subwords the exported model was trained with")


def search_of(record: Record, given: argparse.Namespace) -> Search:
    """Return the search settings of an export, overridden by the options on the command line."""
    names = {"beam": "beam", "lenpen": "length_penalty", "max_len_a": "max_len_a", "max_len_b": "max_len_b"}
    changed = {name: getattr(given, flag) for flag, name in names.items() if getattr(given, flag) is not None}
    return replace(record.search, nbest=1, **changed)


def source_subwords(corpus: Corpus, subset: str) -> list[list[str]]:
    """Return the binarised sources of a subset as subwords, without </s>.

    Raises: ValueError naming the data folder if it has no such set.
    """
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(corpus.path / f"dict.{corpus.source}.txt"))
    prefix = corpus.path / f"{subset}.{corpus.pair}.{corpus.source}"
    dataset = data_utils.load_indexed_dataset(str(prefix), dictionary)
    if dataset is None:
        raise ValueError(f"{corpus.path}: has no binarised {subset} set")
    return [
        [dictionary[index] for index in dataset[number].tolist() if index != dictionary.eos()]
        for number in range(len(dataset))
    ]


def is_same_folder(data: Path, said: Path) -> bool:
    """Return whether a data folder may be the one that results.json names, perhaps relative to another folder."""
    full = data.resolve()
    return full == said.resolve() or (not said.is_absolute() and full.parts[-len(said.parts) :] == said.parts)


def is_decoded_with(decoding: Mapping[str, str | None], search: Search) -> bool:
    """Return whether a run was decoded with these search settings; decoding: as in results.json."""
    used = {
        "beam": search.beam,
        "lenpen": search.length_penalty,
        "max-len-a": search.max_len_a,
        "max-len-b": search.max_len_b,
    }
    return all(float(decoding.get(name) or "nan") == value for name, value in used.items())


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
    file = run.file(record.checkpoint)
    note = MadeFrom.read(run.file("averaged.json"))
    averaged = [one.file for one in note.files[:-1]] if note else []
    updates = run.training_summary().num_updates  # None without a log, for example if the folder contains scores only
    reasons = {
        "other data": not is_same_folder(data, Path(results.data or record.data)),
        "other decoding settings": not is_decoded_with(results.decoding, search),
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
