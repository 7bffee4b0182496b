"""The data folder of a text corpus: read DATA/corpus.json, and check the files against it.

    DATA/corpus.json                 sources, settings, checksums, counts, versions, how to restore text
    DATA/dict.LANG.txt               a line for each word: WORD COUNT, or WORD COUNT #fairseq:overwrite
    DATA/SPLIT.SRC-TGT.LANG.idx      header, number of tokens (int32) and byte offset (int64) of every sentence
    DATA/SPLIT.SRC-TGT.LANG.bin      the token ids of all sentences, one after the other
    DATA/ref/SPLIT.LANG              the unchanged validation and test texts: the references for BLEU
    DATA/spm.model or bpe.codes      the subword model, of sentencepiece or subword-nmt

fairseq would read other sentences from a .bin file that does not belong to its .idx file, and train without references
if one side is missing. The format of both is that of MMapIndexedDataset in fairseq/data/indexed_dataset.py; the older
formats (lazy, cached, huffman) are not checked.
"""

from __future__ import annotations

import glob
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from ...files import read_lines
from ..recorded import Recorded, RecordedFolder
from .bleu import default_tokenizer
from .forms import TOKENISED, Form, Normalize, TextForm, is_blank
from .segmentation import Segmenter

CORPUS = "corpus.json"
WRITER = "fairseq-resid prepare"
MAGIC = b"MMIDIDX\x00\x00"
OLDER_MAGICS = (b"TNTIDX\x00\x00", b"HUFFIDX\x00")
HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the data type, number of sentences
ID_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8}  # size of a token id by the code of the data type
ENTRY = re.compile(r".+ -?\d+( #fairseq:overwrite)?")  # of a dictionary
AGAIN = "prepare the data folder again"


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
class CorpusRecord(Recorded):
    """DATA/corpus.json. Fields with a default are missing in files from some earlier versions.

    asked: the settings that the folder was made with
    differences: differences from the corpus of this name
    unverified: texts that were not verified by a checksum; None in folders made before 0.3.2
    skipped: names of the test sets that were not on disk, by split
    lines, tokens: pairs per split; subwords per split and language
    profile: the preparation that was reproduced; facts: counts to compare with those of that preparation
    """

    file: ClassVar[str] = CORPUS
    writer: ClassVar[str] = WRITER

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
    def not_verified(self) -> Sequence[str]:
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
        text = self.text
        return TextForm.of_sides(self.source, self.target, text.form, text.normalize, text.split_hyphens)


@dataclass(frozen=True)
class Corpus(RecordedFolder[CorpusRecord]):
    """A data folder: binarised text, raw references in ref/, corpus.json.

    source, target: the languages in the direction of the model; tokenize: sacrebleu's tokeniser of the target
    """

    source: str
    target: str
    tokenize: str

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
        record = CorpusRecord.of(path)
        pair = record.source, record.target
        source, target = direction or pair
        if {source, target} != {*pair}:
            raise ValueError(f"{path / CORPUS}: {' and '.join(pair)}, but the model translates {source} to {target}")
        return cls(path, record, source, target, record.tokenizer(target))

    @property
    def pair(self) -> str:
        """The languages as in the names of the files."""
        return f"{self.record.source}-{self.record.target}"

    @property
    def name(self) -> str:
        """The name of the corpus, and the direction of the model if that is not the one it was prepared for."""
        return self.record.name + (f" {self.source}-{self.target}" if self.source != self.record.source else "")

    @property
    def form(self) -> TextForm:
        return self.record.forms()[self.target]

    @property
    def post_process(self) -> str | None:
        """The value of --post-process for fairseq-generate."""
        return self.record.restore.post_process

    def segmenter(self) -> Segmenter:
        """Return the subword model.

        Raises: ValueError if the folder does not contain one.
        """
        if not (model := self.record.restore.model):
            raise ValueError(f"{self.path}: contains no subword model")
        return Segmenter(self.post_process, self.path / model)

    def reference(self, subset: str) -> Path:
        return self.path / f"ref/{subset}.{self.target}"

    def references(self, subset: str) -> list[str]:
        """Return the reference text in the form that is scored."""
        form = self.form
        return [form.reference(line) for line in read_lines(self.reference(subset))]

    def lengths(self, subset: str, language: str) -> list[int]:
        """Return the number of subwords, with </s>, of every binarised sentence; empty for raw or older formats."""
        file = self.path / f"{subset}.{self.pair}.{language}.idx"
        found = _read_index(file) if file.is_file() else None
        return [] if found is None else found[0].tolist()

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
    known = CorpusRecord.checked(data, verify) if (data / CORPUS).is_file() else None
    check_texts(data)
    check_dictionaries(data)
    return known is not None and bool(known.sizes)


def check_dictionaries(data: Path) -> None:
    """Check the lines of all dictionaries: fairseq would name neither the file nor the line.

    Raises: ValueError naming the file and the line.
    """
    for file in sorted(data.glob("dict.*.txt")):
        for number, line in enumerate(read_lines(file), start=1):
            if not ENTRY.fullmatch(line.rstrip()):
                raise ValueError(f"{file}:{number}: {line[:40]!r}: expected 'WORD COUNT'; {AGAIN}")


def check_texts(data: Path, subset: str | None = None) -> None:
    """Check that the binarised texts of a data folder, or those of one subset, are complete.

    Raises: ValueError naming the file and its problem; OSError.
    """
    sides: dict[str, tuple[Path, int]] = {}
    name = glob.escape(subset) if subset else "*"
    for language in (file.name[len("dict.") : -len(".txt")] for file in sorted(data.glob("dict.*.txt"))):
        for content in sorted(data.glob(f"{name}.*-*.{glob.escape(language)}.bin")):
            if not (file := content.with_suffix(".idx")).is_file():
                raise ValueError(f"{file}: missing; {AGAIN}")
        for file in sorted(data.glob(f"{name}.*-*.{glob.escape(language)}.idx")):
            if (found := _read_index(file)) is None:
                continue
            lengths, id_bytes = found
            content, expected = file.with_suffix(".bin"), int(lengths.sum(dtype=np.int64)) * id_bytes
            if (size := content.stat().st_size) != expected:
                raise ValueError(f"{content}: damaged: {size:,} bytes, but {file.name} needs {expected:,}; {AGAIN}")
            other, count = sides.setdefault(file.name.removesuffix(f"{language}.idx"), (file, len(lengths)))
            if count != len(lengths):
                raise ValueError(f"{file}: {len(lengths):,} sentences, but {other.name} has {count:,}; {AGAIN}")


def require_subset(data: Path, subset: str, source: str, target: str) -> None:
    """Check that a subset exists in both languages, binarised or as raw text.

    Raises: ValueError naming the folder, the subset and the language.
    """
    for language in (source, target):
        names = [f"{subset}.{pair}.{language}" for pair in (f"{source}-{target}", f"{target}-{source}")]
        if not any((data / f"{name}{ending}").is_file() for name in names for ending in ("", ".bin")):
            raise ValueError(f"{data}: has no binarised {subset} set in {language}")


def _read_index(file: Path) -> tuple[np.ndarray, int] | None:
    """Return the number of tokens of every sentence in an .idx file, and the bytes per token; None for an older format.

    Raises: ValueError naming the file if it is damaged.
    """
    with file.open("rb") as opened:
        header = opened.read(HEADER.size)
        if header.startswith(OLDER_MAGICS):
            return None
        if header.startswith(MAGIC) and len(header) == HEADER.size:
            _, _, code, sentences = HEADER.unpack(header)
            if code in ID_BYTES and file.stat().st_size == HEADER.size + 12 * sentences:
                return np.fromfile(opened, "<i4", sentences), ID_BYTES[code]
    raise ValueError(f"{file}: damaged or truncated; {AGAIN}")
