"""The data folder: what DATA/corpus.json says of it, and whether its files are still as they were written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ... import records
from ...files import read_lines
from ..sizes import check_sizes
from .forms import TextForm
from .segmentation import Segmenter

CORPUS = "corpus.json"
WRITER = "fairseq-resid prepare"


class PairCounts(msgspec.Struct, frozen=True):
    """How many pairs a text had, how many are left, and how many were dropped for each reason."""

    read: int = msgspec.field(name="in")
    kept: int = msgspec.field(name="out")
    dropped: dict[str, int] = {}

    def __str__(self) -> str:
        reasons = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in self.dropped.items() if count]
        return f"{self.kept:,}" + (f" of {self.read:,} (dropped: {', '.join(reasons)})" if reasons else "")


@dataclass(frozen=True)
class SourceText:
    """One side of one raw text.

    file, member: the file, and the member if it is an archive
    origin: the address of the released text; None unless a checksum shows that this is the released text
    status: "released", "unverified" or "other"; None if a version before 0.3.2 made it
    """

    file: str
    member: str | None = None
    origin: str | None = None
    file_sha256: str | None = None
    status: str | None = None
    lines: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class LostLine:
    """The first line that does not come back from subwords."""

    line: int
    cause: str
    reference: str
    restored: str


@dataclass(frozen=True)
class RoundTrip:
    """The reference text cut into subwords and restored: what a perfect model would score.

    exact, of: how many lines come back unchanged, of how many; lost: the others by cause
    """

    exact: int
    of: int
    bleu: float
    signature: str
    lost: dict[str, int] = field(default_factory=dict)
    example: LostLine | None = None


@dataclass(frozen=True)
class Overlap:
    """The lines of a valid or test text, from 1, whose source, target or both as one pair are in the training text."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    pair: tuple[int, ...]


@dataclass(frozen=True)
class TextSettings:
    """The form of the text, as fairseq_resid/data/text/forms.py explains it."""

    form: str = "plain"
    normalize: str = "none"
    split_hyphens: bool = False


@dataclass(frozen=True)
class SubwordSettings:
    """How the subwords were learned."""

    model: str = "bpe"
    normalizer: str = "nmt_nfkc"


@dataclass(frozen=True)
class Restore:
    """How decoded text becomes plain text: fairseq's --post-process, and the subword model in the data folder."""

    post_process: str | None
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """DATA/corpus.json. Fields with a default are absent from the files of some earlier version.

    asked: the settings that the folder was made with
    differences: how it differs from the corpus that its name promises
    unverified: texts that no checksum vouches for; None if a version before 0.3.2 made it
    skipped: test sets of the corpus that were not on disk, by split, with their names
    lines, tokens: pairs of each split; subwords of each split and language
    profile: as whom the text was prepared; facts: what was counted to compare it with their text
    sizes, checksums: bytes and SHA-256 of every other file of the folder
    """

    name: str
    source: str
    target: str
    vocab_size: int = 0
    asked: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, SourceText] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    unverified: tuple[str, ...] | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    lines: dict[str, PairCounts] = field(default_factory=dict)
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    round_trip: dict[str, RoundTrip] = field(default_factory=dict)
    overlap: dict[str, Overlap] = field(default_factory=dict)
    text: TextSettings = TextSettings()
    subwords: SubwordSettings = SubwordSettings()
    restore: Restore
    bleu_tokenize: str
    profile: str = ""
    facts: dict[str, dict[str, int]] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)

    @property
    def unverified_texts(self) -> tuple[str, ...]:
        """The texts that no checksum vouches for.

        Before 0.3.2 text from --raw was compared with nothing, and its official origin was named all the same.
        """
        if self.unverified is not None:
            return self.unverified
        is_named = any(text.origin for text in self.texts.values())
        return ("all texts (an earlier version did not compare them)",) if is_named else ()

    def forms(self) -> dict[str, TextForm]:
        """Return the form of each language's text.

        Raises: ValueError for a form that this version does not know.
        """
        text = self.text
        return TextForm.of_sides(self.source, self.target, text.form, text.normalize, text.split_hyphens)


def read(data: Path) -> CorpusRecord:
    """Read DATA/corpus.json.

    Raises: OSError if there is none, ValueError naming it and what is wrong.
    """
    return records.read(data / CORPUS, CorpusRecord, WRITER)


@dataclass(frozen=True)
class Corpus:
    """A data folder: binarised text, raw references in ref/, corpus.json."""

    path: Path
    name: str
    source: str
    target: str
    restore: Restore
    tokenize: str
    form: TextForm
    profile: str = ""
    differences: tuple[str, ...] = ()  # from the corpus that its name promises
    unverified: tuple[str, ...] = ()  # texts of which no checksum is known
    preparation: dict[str, Any] = field(default_factory=dict)  # the settings that it was made with
    skipped: dict[str, str] = field(default_factory=dict)  # test sets that were not on disk, with their names

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """Read DATA/corpus.json.

        Raises: OSError if there is none, ValueError naming it and what is wrong.
        """
        if not path.is_dir():
            raise ValueError(f"{path}: no such data folder; pass it with --data")
        known = read(path)
        try:
            form = known.forms()[known.target]
        except ValueError as error:
            raise ValueError(f"{path / CORPUS}: {error}") from None
        return cls(
            path,
            known.name,
            known.source,
            known.target,
            known.restore,
            known.bleu_tokenize,
            form,
            known.profile,
            known.differences,
            known.unverified_texts,
            known.asked,
            known.skipped,
        )

    @property
    def post_process(self) -> str | None:
        """What fairseq-generate's --post-process is."""
        return self.restore.post_process

    def segmenter(self) -> Segmenter:
        """Return the subword model.

        Raises: ValueError if the folder has none.
        """
        if not self.restore.model:
            raise ValueError(f"{self.path}: contains no subword model")
        return Segmenter(self.restore.post_process, self.path / self.restore.model)

    def reference(self, subset: str) -> Path:
        return self.path / "ref" / f"{subset}.{self.target}"

    def references(self, subset: str) -> list[str]:
        """Return the reference text in the form that is scored."""
        return [self.form.reference(line) for line in read_lines(self.reference(subset))]

    def inputs(self, subset: str) -> list[Path]:
        """Return the files that a translation of `subset` depends on."""
        return sorted(
            [*self.path.glob(f"{subset}.*.bin"), *self.path.glob(f"{subset}.*.idx"), *self.path.glob("dict.*")]
        )


def check(data: Path, verify: bool = False) -> bool:
    """Compare the files of a data folder with corpus.json: their sizes, and with `verify` their checksums.

    Returns: whether the sizes are known. A folder that fairseq-preprocess made alone has no corpus.json, and one that a
    version before 0.3.2 made has checksums only.
    Raises: ValueError naming every file that is missing or damaged, or corpus.json if it cannot be read.
    """
    known = records.read_if_there(data / CORPUS, CorpusRecord, WRITER)
    if known is None:
        return False
    check_sizes(data, CORPUS, known.sizes, known.checksums if verify else {})
    return bool(known.sizes)
