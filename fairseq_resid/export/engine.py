"""The interface that all engines share, and export.json, the description in every export folder.

>>> from fairseq_resid.export.engine import Search, load
>>> load(Path("exported")).translate([["▁A", "▁man", "."]], Search())
"""

from __future__ import annotations

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from ..cli.frame import MissingPackage
from ..data.text.forms import Form, Normalize

RECORD, FORMAT = "export.json", 1
WRITER = "fairseq-resid export"
OLDEST_PYTHON = (3, 11)  # engine releases for older Python versions give different results
EOS, BOS, PAD, UNK = "</s>", "<s>", "<pad>", "<unk>"  # fairseq's special symbols
# The package of each engine. The module of this name has write, which writes its files, and Model, which loads them.
ENGINES = {"ctranslate2": "ctranslate2", "onnx": "onnxruntime", "huggingface": "transformers"}
Words = Sequence[str]  # the subwords of a sentence


@dataclass(frozen=True)
class Search:
    """Beam search with the settings of fairseq-generate.

    A translation has at most max_len_a · (source length including </s>) + max_len_b subwords.
    """

    beam: int = 4
    length_penalty: float = 0.6
    max_len_a: float = 1.0
    max_len_b: int = 50
    nbest: int = 1
    batch_size: int = 32

    def longest(self, source: int) -> int:
        """Return the maximum length of a translation, in subwords, for a source of `source` subwords."""
        return int(self.max_len_a * (source + 1) + self.max_len_b)


@dataclass(frozen=True)
class Hypothesis:
    """A translation. score: sum of log p over the tokens and </s>, divided by (number of terms)^length_penalty."""

    tokens: tuple[str, ...]  # without <s> and </s>
    score: float


class Engine(ABC):
    """A model loaded by an engine. Subwords are strings, without </s>. Log probabilities are in nats.

    longest: maximum number of subwords in a source and in a target, including </s>
    """

    longest: tuple[int, int]

    @abstractmethod
    def decode(
        self, sources: Sequence[Words], prefixes: Sequence[Words] | None, search: Search, most: int
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses for a batch of sources, best first. most: maximum number of subwords."""

    @abstractmethod
    def log_p(self, sources: Sequence[Words], targets: Sequence[Words]) -> list[list[float]]:
        """Return log p of every target token, and of </s> at the end, for a batch of sources."""

    def translate(
        self, sources: Sequence[Words], search: Search, prefixes: Sequence[Words] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best translations of each source, best first. Each starts with its source's prefix.

        Raises: ValueError naming the source that is too long for the model.
        """
        check_lengths(sources, self.longest[0], "source")
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for rows in batches(sources, search.batch_size):
            most = min(search.longest(max(len(sources[row]) for row in rows)), self.longest[1] - 1)
            begun = None if prefixes is None else [prefixes[row] for row in rows]
            made = self.decode([sources[row] for row in rows], begun, search, max(most, 1))  # fairseq's --min-len is 1
            for row, hypotheses in zip(rows, made, strict=True):
                found[row] = hypotheses[: search.nbest]
        return found

    def score(self, sources: Sequence[Words], targets: Sequence[Words]) -> list[list[float]]:
        """Return log p of every target token, and of </s> at the end.

        Raises: ValueError naming the sentence that is too long for the model.
        """
        check_lengths(sources, self.longest[0], "source")
        check_lengths(targets, self.longest[1], "target")
        found: list[list[float]] = [[] for _ in sources]
        for rows in batches(sources, Search.batch_size):
            made = self.log_p([sources[row] for row in rows], [targets[row] for row in rows])
            for row, log_p in zip(rows, made, strict=True):
                found[row] = log_p
        return found


@dataclass(frozen=True)
class Text:
    """How raw text becomes subwords and subwords become text: see fairseq_resid/data/text/forms.py.

    post_process: kind of subwords, as in fairseq's --post-process; model: the subword model in the folder
    """

    source: str
    target: str
    form: Form = "plain"
    normalize: Normalize = "none"
    split_hyphens: bool = False
    post_process: str | None = None
    model: str | None = None
    tokenize: str = "13a"  # a sacrebleu tokenizer


@dataclass(frozen=True)
class Record:
    """The content of export.json.

    engine_version: version of the engine package that wrote the model
    run, checkpoint, data: the run folder, the name of the checkpoint file in it, and the data folder
    sha256: of the checkpoint file; empty in exports of earlier versions
    structure: the --residual name and its options; quantization: None for float32
    longest: maximum number of subwords in a source and in a target, including </s>
    search: the settings of the run's evaluation; proof: the comparison with fairseq (proof.py)
    """

    format: int
    engine: str
    engine_version: str
    run: str
    checkpoint: str
    data: str
    structure: Mapping[str, Any]
    quantization: str | None
    longest: tuple[int, int]
    text: Text
    search: Search
    proof: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""


def check_installed(name: str) -> None:
    """Raise MissingPackage with install instructions if an engine is missing, or for an older version of Python."""
    if sys.version_info < OLDEST_PYTHON:
        raise MissingPackage(
            f"{name}: requires Python {'.'.join(map(str, OLDEST_PYTHON))} or newer; this is Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}"
        )
    check_package(name, ENGINES[name])


def check_package(name: str, package: str) -> None:
    """Raise MissingPackage with install instructions if a package that an engine requires is missing."""
    if find_spec(package) is None:
        raise MissingPackage(
            f"{package} is not installed; in the project's folder run "
            f'pip install -c constraints/fairseq-fixed.txt -e ".[{name}]"'
        )


def is_export(folder: Path) -> bool:
    return (folder / RECORD).is_file()


def read(folder: Path) -> Record:
    """Read the export.json of a folder.

    Raises: OSError if it does not exist; ValueError naming the file and the problem.
    """
    from .. import records

    file = folder / RECORD
    known = records.read(file, Record, WRITER)
    if known.format != FORMAT:
        raise ValueError(f"{file}: format {known.format}: this version reads format {FORMAT}")
    return known


def load(folder: Path, threads: int = 0) -> Engine:
    """Load the model of an export folder with its engine.

    threads: number of CPU threads; 0 means the engine's default
    Raises: OSError or ValueError naming the file and the problem, or the engine that is not installed.
    """
    record = read(folder)
    check_installed(record.engine)
    return cast(Engine, import_module(f".{record.engine}", __package__).Model(folder, record, threads))


@contextmanager
def calling(library: str, path: Path, does: str) -> Iterator[None]:
    """Turn any error from an engine's library, whose exceptions have no common class, into one line naming the file.

    Only calls to the library belong in this context, because it would also replace our own messages.
    Raises: ValueError.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: {library} {does}: {reason}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log and the warnings of an engine's library, whose errors are exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def symbols(dictionary: Any) -> list[str]:
    """Return the symbols of a fairseq dictionary, which engines look up by name.

    Raises: ValueError if two symbols are equal, which fairseq allows with #fairseq:overwrite.
    """
    found = list(dictionary.symbols)
    if len(set(found)) != len(found):
        raise ValueError(f"dictionary of {len(found):,} symbols: contains a symbol twice")
    return found


def batches(sources: Sequence[Words], size: int) -> Iterator[list[int]]:
    """Yield the indices of the sources in batches of `size`, sorted by length: a batch has a single maximum length."""
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def check_lengths(sentences: Sequence[Words], most: int, name: str) -> None:
    """Raise ValueError for a sentence with more than `most` subwords, including </s>; name: "source" or "target"."""
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) >= most:
            raise ValueError(f"{name} {number}: {len(sentence):,} subwords; the model accepts at most {most - 1:,}")
