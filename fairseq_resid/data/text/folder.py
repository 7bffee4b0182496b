"""The data folder of a text corpus: read DATA/corpus.json, and check the files against it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from ... import records
from ...files import read_lines
from ..recorded import check_sizes
from .binarised import check_texts, sentence_lengths
from .bleu import default_tokenizer
from .forms import TOKENISED, Form, Normalize, TextForm, is_blank
from .segmentation import Segmenter

CORPUS = "corpus.json"
WRITER = "fairseq-resid prepare"


class PairCounts(msgspec.Struct, frozen=True):
    """The number of pairs read, kept, and dropped for each reason; half_empty: kept ones with an empty side."""

    read: int = msgspec.field(name="in")
    kept: int = msgspec.field(name="out")
    dropped: dict[str, int] = {}
    half_empty: int = 0

    def __str__(self) -> str:
        reasons = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in self.dropped.items() if count]
        return f"{self.kept:,}" + (f" of {self.read:,} (dropped: {', '.join(reasons)})" if reasons else "")


@dataclass(frozen=True)
class SourceText:
    """One side of one raw text.

    file, member: the file, and the member if the file is an archive
    origin: the URL of the released text, or its name in sacrebleu; None unless a checksum verifies it
    status: "released", "unverified" or "other"; None in folders made before 0.3.2
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
    """The first line that the subword round trip changes."""

    line: int
    cause: str
    reference: str
    restored: str


@dataclass(frozen=True)
class RoundTrip:
    """The result of segmenting the reference text into subwords and restoring it, which limits the score of any model.

    exact, of: the numbers of unchanged lines and of all lines; lost: changed lines by cause
    perfect: BLEU of the references themselves; less than 100 if none of them has four tokens
    """

    exact: int
    of: int
    bleu: float
    signature: str
    lost: dict[str, int] = field(default_factory=dict)
    example: LostLine | None = None
    perfect: float = 100.0


@dataclass(frozen=True)
class Overlap:
    """Line numbers (from 1) of validation or test sentences whose source, target or both occur in the training text."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    pair: tuple[int, ...]


@dataclass(frozen=True)
class TextSettings:
    """The form of the text; see fairseq_resid/data/text/forms.py."""

    form: Form = "plain"
    normalize: Normalize = "none"
    split_hyphens: bool = False


@dataclass(frozen=True)
class SubwordSettings:
    """How the subwords were learned."""

    model: str = "bpe"
    normalizer: str = "nmt_nfkc"


PostProcess = Literal["sentencepiece", "subword_nmt", "@@ ", "@@", "wordpiece", "letter", "silence", "_EOW", "none"]


@dataclass(frozen=True)
class Restore:
    """How to convert decoded text to plain text: fairseq's --post-process, and the subword model in the data folder.

    Only values that fairseq knows are allowed, because a value such as --user-dir=X would become an option of
    fairseq-generate.
    """

    post_process: PostProcess | None
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """DATA/corpus.json. Fields with a default are missing in files from some earlier versions.

    asked: the settings that the folder was made with
    differences: differences from the corpus of this name
    unverified: texts that were not verified by a checksum; None in folders made before 0.3.2
    skipped: names of the test sets that were not on disk, by split
    lines, tokens: pairs per split; subwords per split and language
    profile: the preparation that was reproduced; facts: counts to compare with those of that preparation
    sizes, checksums: bytes and SHA-256 of every other file in the folder
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
        """The texts that were not verified by a checksum.

        Before 0.3.2, text from --raw was not verified, but its official origin was recorded anyway.
        """
        if self.unverified is not None:
            return self.unverified
        is_named = any(text.origin for text in self.texts.values())
        return ("all texts (an earlier version did not compare them)",) if is_named else ()

    def tokenizer(self, target: str) -> str:
        """Return sacrebleu's tokeniser for translations into `target`, which is either language of the corpus.

        Before 1.1.0, raw text in every language was recorded with 13a, whatever the language.
        """
        is_chosen = self.asked.get("tokenize") or (target == self.target and self.bleu_tokenize != "13a")
        if is_chosen:
            return self.bleu_tokenize
        return "none" if self.text.form in TOKENISED else default_tokenizer(target)

    def forms(self) -> dict[str, TextForm]:
        """Return the form of each language's text."""
        text = self.text
        return TextForm.of_sides(self.source, self.target, text.form, text.normalize, text.split_hyphens)


def read(data: Path) -> CorpusRecord:
    """Read DATA/corpus.json.

    Raises: OSError if it does not exist; ValueError naming the file and the problem.
    """
    return records.read(data / CORPUS, CorpusRecord, WRITER)


@dataclass(frozen=True)
class Corpus:
    """A data folder: binarised text, raw references in ref/, corpus.json.

    name: the name of the corpus, followed by the direction of the model if that is not the one it was prepared for
    source, target: the languages in the direction of the model; pair: as in the file names
    """

    path: Path
    name: str
    source: str
    target: str
    pair: str
    restore: Restore
    tokenize: str
    form: TextForm
    profile: str = ""
    differences: tuple[str, ...] = ()  # from the corpus of this name
    unverified: tuple[str, ...] = ()  # texts without a known checksum
    preparation: dict[str, Any] = field(default_factory=dict)  # the settings that it was made with
    skipped: dict[str, str] = field(default_factory=dict)  # names of the test sets that were not on disk, by split

    @classmethod
    def read(cls, path: Path, direction: tuple[str, str] | None = None) -> Corpus:
        """Read DATA/corpus.json.

        direction: source and target language of the model; None: as the corpus was prepared
        Raises: OSError if it does not exist; ValueError naming the folder or file and the problem.
        """
        if not path.is_dir():
            raise ValueError(f"{path}: no such data folder; pass it with --data")
        if not (path / CORPUS).exists():
            raise FileNotFoundError(
                f"{path / CORPUS}: no such file; scoring and translating need a data folder made by {WRITER}, "
                f"or by {WRITER} custom for your own text"
            )
        known = read(path)
        pair = known.source, known.target
        direction = direction or pair
        if sorted(direction) != sorted(pair):
            raise ValueError(
                f"{path / CORPUS}: {' and '.join(pair)}, but the model translates {' to '.join(direction)}"
            )
        return cls(
            path,
            known.name if direction == pair else f"{known.name} {'-'.join(direction)}",
            *direction,
            "-".join(pair),
            known.restore,
            known.tokenizer(direction[1]),
            known.forms()[direction[1]],
            known.profile,
            known.differences,
            known.unverified_texts,
            known.asked,
            known.skipped,
        )

    @property
    def post_process(self) -> str | None:
        """The value of --post-process for fairseq-generate."""
        return self.restore.post_process

    def segmenter(self) -> Segmenter:
        """Return the subword model.

        Raises: ValueError if the folder does not contain one.
        """
        if not self.restore.model:
            raise ValueError(f"{self.path}: contains no subword model")
        return Segmenter(self.restore.post_process, self.path / self.restore.model)

    def reference(self, subset: str) -> Path:
        return self.path / f"ref/{subset}.{self.target}"

    def references(self, subset: str) -> list[str]:
        """Return the reference text in the form that is scored."""
        return [self.form.reference(line) for line in read_lines(self.reference(subset))]

    def lengths(self, subset: str, language: str) -> list[int]:
        """Return the number of subwords, with </s>, of every binarised sentence; empty for raw or older formats."""
        return sentence_lengths(self.path / f"{subset}.{self.pair}.{language}.idx")

    def blank_lines(self, subset: str) -> set[int]:
        """Return the indices of the source sentences that are blank, in the raw text or after segmentation."""
        blank = {index for index, length in enumerate(self.lengths(subset, self.source)) if length == 1}
        raw = self.path / f"ref/{subset}.{self.source}"
        lines = read_lines(raw) if raw.is_file() else []
        return blank | {index for index, line in enumerate(lines) if is_blank(line)}

    def inputs(self, subset: str) -> list[Path]:
        """Return the files that a translation of `subset` depends on."""
        return sorted(
            [*self.path.glob(f"{subset}.*.bin"), *self.path.glob(f"{subset}.*.idx"), *self.path.glob("dict.*")]
        )


def check(data: Path, verify: bool = False) -> bool:
    """Check the files that fairseq opens, and compare the sizes of all files with corpus.json.

    verify: compare their checksums too

    Returns: whether the sizes are known. A folder made by fairseq-preprocess alone has no corpus.json, and one made
    before 0.3.2 has only checksums.
    Raises: ValueError naming every file that is missing or damaged, or corpus.json if it cannot be read.
    """
    known = records.read_if_there(data / CORPUS, CorpusRecord, WRITER)
    if known is not None:
        check_sizes(data, CORPUS, known.sizes, known.checksums if verify else {})
    check_texts(data)
    return known is not None and bool(known.sizes)
