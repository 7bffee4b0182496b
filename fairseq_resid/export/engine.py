"""The interface that all engines share, and export.json, the description in every export folder.

>>> from fairseq_resid.export.engine import Search, load
>>> load(Path("exported")).translate([["▁A", "▁man", "."]], Search())
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from ..cli.frame import MissingPackage
from ..data.text.bleu import check_tokenizer
from ..data.text.forms import check_languages
from ..files import bounded, inside
from .checks import check_files

RECORD, FORMAT = "export.json", 1
MOST_BEAM, MOST_BATCH, MOST_FACTOR, MOST_MORE, MOST_LENGTH = 1000, 10_000, 1000, 1_000_000, 1 << 20
MOST_HYPOTHESES = 4096  # in a batch
MOST_SUBWORD_MODEL = 64 << 20  # bytes
WRITER = "fairseq-resid export"
OLDEST_PYTHON = (3, 11)  # engine releases for older Python versions give different results


@dataclass(frozen=True)
class Search:
    """Beam search with the settings of fairseq-generate.

    A translation has at most max_len_a · (source length including </s>) + max_len_b subwords.
    Raises: ValueError for a value that is NaN or out of range.
    """

    beam: int = 4
    length_penalty: float = 0.6
    max_len_a: float = 1.0
    max_len_b: int = 50
    nbest: int = 1
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.beam < 1 or not 1 <= self.nbest <= self.beam or self.batch_size < 1:
            raise ValueError(
                f"beam {self.beam}, nbest {self.nbest}, batch_size {self.batch_size}: must be at least 1, "
                "and nbest at most beam"
            )
        if self.beam > MOST_BEAM or self.batch_size > MOST_BATCH:
            raise ValueError(
                f"beam {self.beam}, batch_size {self.batch_size}: beam must be at most {MOST_BEAM}, and batch_size "
                f"at most {MOST_BATCH:,}"
            )
        for name, least, most in (
            ("length_penalty", -MOST_FACTOR, MOST_FACTOR),
            ("max_len_a", -MOST_FACTOR, MOST_FACTOR),
            ("max_len_b", 0, MOST_MORE),
        ):
            try:
                bounded(getattr(self, name), least, most)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None

    @property
    def together(self) -> int:
        """The number of sentences in a batch: fewer than `batch_size` for a wide beam, to limit memory use."""
        return max(1, min(self.batch_size, MOST_HYPOTHESES // self.beam))

    def longest(self, source: int) -> int:
        """Return the maximum length of a translation, in subwords, for a source of `source` subwords."""
        return int(self.max_len_a * (source + 1) + self.max_len_b)


@dataclass(frozen=True)
class Hypothesis:
    """A translation. score: sum of log p over the tokens and </s>, divided by (number of terms)^length_penalty."""

    tokens: tuple[str, ...]  # without <s> and </s>
    score: float


class Engine(Protocol):
    """A model loaded by an engine. Subwords are strings, without </s>. Log probabilities use the natural logarithm."""

    def translate(
        self, sources: Sequence[Sequence[str]], search: Search, prefixes: Sequence[Sequence[str]] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best translations of each source, best first. Each starts with its source's prefix."""
        ...

    def score(self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return log p of every target token, and of </s> at the end."""
        ...


@dataclass(frozen=True)
class Text:
    """How raw text becomes subwords and subwords become text: see fairseq_resid/data/text/forms.py.

    post_process: kind of subwords, as in fairseq's --post-process; model: the subword model in the folder
    """

    source: str
    target: str
    form: str = "plain"
    normalize: str = "none"
    split_hyphens: bool = False
    post_process: str | None = None
    model: str | None = None
    tokenize: str = "13a"  # a sacrebleu tokenizer

    def __post_init__(self) -> None:
        check_languages(self.source, self.target)
        check_tokenizer(self.tokenize)
        if self.model is not None and (Path(self.model).name != self.model or "\0" in self.model):
            raise ValueError(f"subword model {self.model[:40]!r}: must be the name of a file in the folder")


@dataclass(frozen=True)
class Record:
    """The content of export.json.

    engine_version: version of the engine package that wrote the model
    run, checkpoint, data: the run folder, the name of the checkpoint file in it, and the data folder
    sha256: of the checkpoint file; empty in exports of earlier versions
    structure: the --residual name and its options; quantization: None for float32
    longest: maximum number of subwords in a source and in a target, including </s>
    search: the settings of the run's evaluation; proof: the result of the comparison with fairseq
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


@dataclass(frozen=True)
class Kind:
    """An engine: the module that writes its files, the module that loads them, and the package that it requires.

    The second module declares FILES, all files that it opens and their maximum sizes in bytes; FOREIGN, the files that
    the engine's library would also open although they are never written; and the class Model.
    """

    writer: str
    loader: str
    package: str

    def load(self) -> Any:
        """Return the module that loads the files. It does not import the engine yet."""
        return import_module(f".{self.loader}", __package__)


ENGINES: dict[str, Kind] = {
    "ctranslate2": Kind("ctranslate2", "ctranslate2", "ctranslate2"),
    "onnx": Kind("onnx", "onnx_runner", "onnxruntime"),
    "huggingface": Kind("huggingface", "huggingface", "transformers"),
}


def check_installed(name: str) -> None:
    """Raise MissingPackage with install instructions if an engine is missing."""
    if sys.version_info < OLDEST_PYTHON:
        raise MissingPackage(
            f"{name}: requires Python {'.'.join(map(str, OLDEST_PYTHON))} or newer; this is Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}"
        )
    check_package(name, ENGINES[name].package)


def check_package(name: str, package: str) -> None:
    """Raise MissingPackage with install instructions if a package that an engine requires is missing."""
    if find_spec(package) is None:
        raise MissingPackage(
            f"{name}: {package} is not installed; in the project's folder run "
            f'pip install -c constraints/fairseq-fixed.txt ".[{name}]"'
        )


def is_export(folder: Path) -> bool:
    """Return whether a folder contains an export."""
    return (folder / RECORD).is_file()


def read(folder: Path) -> Record:
    """Read the export.json of a folder, and check the files that its engine opens.

    Raises: OSError if export.json does not exist; ValueError naming the file and the problem.
    """
    from .. import records

    file = inside(folder, RECORD)
    known = records.read(file, Record, WRITER)
    if known.format != FORMAT:
        raise ValueError(f"{file}: format {known.format}: this version reads format {FORMAT}")
    if known.engine not in ENGINES:
        raise ValueError(f"{file}: engine {known.engine[:40]!r}: must be one of {', '.join(ENGINES)}")
    if not 1 <= min(known.longest) <= max(known.longest) <= MOST_LENGTH:
        raise ValueError(f"{file}: longest {list(known.longest)}: must be positive, and at most {MOST_LENGTH:,}")
    loader = ENGINES[known.engine].load()
    model = {} if known.text.model is None else {known.text.model: MOST_SUBWORD_MODEL}
    check_files(folder, {**model, **loader.FILES}, loader.FOREIGN, WRITER)
    return known


def load(folder: Path, threads: int = 0) -> Engine:
    """Load the model of an export folder with its engine.

    threads: number of CPU threads; 0 means the engine's default
    Raises: OSError or ValueError naming the file and the problem, or the engine that is not installed.
    """
    record = read(folder)
    check_installed(record.engine)
    return cast(Engine, ENGINES[record.engine].load().Model(folder, record, threads))
