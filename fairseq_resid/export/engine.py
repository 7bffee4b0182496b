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

RECORD, FORMAT = "export.json", 1
MOST_BEAM, MOST_BATCH = 1000, 10_000
WRITER = "fairseq-resid export"
OLDEST_PYTHON = (3, 11)  # engine releases for older Python versions give different results


@dataclass(frozen=True)
class Search:
    """Beam search with the settings of fairseq-generate.

    A translation has at most max_len_a · (source length with </s>) + max_len_b subwords.
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


@dataclass(frozen=True)
class Record:
    """The content of export.json.

    engine_version: version of the engine package that wrote the model
    run, checkpoint, data: the run folder, the name of the checkpoint file in it, and the data folder
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


@dataclass(frozen=True)
class Kind:
    """An engine: the module here that writes its files, the one that loads them, and the package that it needs."""

    writer: str
    loader: str
    package: str


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
    """Read the export.json of a folder.

    Raises: OSError if it does not exist; ValueError naming the file and the problem.
    """
    from .. import records

    file = folder / RECORD
    known = records.read(file, Record, WRITER)
    if known.format != FORMAT:
        raise ValueError(f"{file}: format {known.format}: this version reads format {FORMAT}")
    if known.engine not in ENGINES:
        raise ValueError(f"{file}: engine {known.engine[:40]!r}: must be one of {', '.join(ENGINES)}")
    if known.text.model is not None and Path(known.text.model).name != known.text.model:
        raise ValueError(f"{file}: subword model {known.text.model[:40]!r}: must be the name of a file in the folder")
    if min(known.longest) < 1:
        raise ValueError(f"{file}: longest {list(known.longest)}: must be positive")
    if known.search.beam > MOST_BEAM or known.search.batch_size > MOST_BATCH:
        raise ValueError(f"{file}: search: beam must be {MOST_BEAM} or less, and batch_size {MOST_BATCH:,} or less")
    return known


def load(folder: Path, threads: int = 0) -> Engine:
    """Load the model of an export folder with its engine.

    threads: number of CPU threads; 0 means the engine's default
    Raises: OSError or ValueError naming the file and the problem, or the engine that is not installed.
    """
    name = read(folder).engine
    check_installed(name)
    module = import_module(f".{ENGINES[name].loader}", __package__)
    return cast(Engine, module.load(folder, threads))
