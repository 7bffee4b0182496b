"""Check the dictionaries and binarised texts of a data folder before fairseq opens them.

    DATA/dict.LANG.txt               a line for each word: WORD COUNT, or WORD COUNT #fairseq:overwrite
    DATA/SPLIT.SRC-TGT.LANG.idx      header, number of tokens (int32) and byte offset (int64) of every sentence
    DATA/SPLIT.SRC-TGT.LANG.bin      the token ids of all sentences, one after the other

Without this check, a damaged file would make fairseq fail with a traceback, possibly in the middle of a training run.
The formats are those of fairseq/data/dictionary.py and of MMapIndexedDataset in fairseq/data/indexed_dataset.py. The
older formats of binarised text (lazy, cached, huffman) are not checked. Texts are read in blocks, so memory is bounded.
"""

from __future__ import annotations

import glob
import io
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...files import open_any_size, open_regular

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's symbols, which precede those in the file
OVERWRITE = "#fairseq:overwrite"
MAGIC = b"MMIDIDX\x00\x00"
OLDER_MAGICS = (b"TNTIDX\x00\x00", b"HUFFIDX\x00")
HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the data type, number of sentences
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
SENTENCES = 1 << 20  # checked at a time
BLOCK = 1 << 24  # bytes of token ids checked at a time
AGAIN = "prepare the data folder again"


def check_regular(data: Path) -> None:
    """Check that no file that fairseq may open is a pipe or a device, which it might never finish reading.

    fairseq prefers raw text (SPLIT.SRC-TGT.LANG) to binarised text.
    Raises: ValueError naming the file.
    """
    for pattern in ("dict.*", "*.bin", "*.idx", "*.*-*"):
        for file in data.glob(pattern):
            if not file.is_dir():
                open_any_size(file).close()


def check_dictionaries(data: Path) -> dict[str, int]:
    """Check the dictionaries; return the number of symbols of each language, including fairseq's own.

    Raises: ValueError naming the file and line; OSError.
    """
    return {file.name[len("dict.") : -len(".txt")]: _check_dictionary(file) for file in data.glob("dict.*.txt")}


def _check_dictionary(file: Path) -> int:
    words, number = set(SPECIAL), 0
    try:
        # Split at the line ends that fairseq accepts, which include a lone carriage return.
        with open_regular(file) as raw, io.TextIOWrapper(raw, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                word, flag = _fields(line)
                wrong = ""
                if word is None:
                    wrong = f"expected 'WORD COUNT' or 'WORD COUNT {OVERWRITE}'"
                elif word in words and not flag:
                    wrong = "repeats a word or one of " + " ".join(SPECIAL)
                if word is None or wrong:
                    raise ValueError(f"{file}:{number}: {line.rstrip()[:40]!r}: {wrong}")
                words.add(word)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error.reason}) after line {number:,}") from None
    return len(SPECIAL) + number


def _fields(line: str) -> tuple[str | None, bool]:
    """Return the word of a line (None if the line is invalid), and whether it may repeat an earlier word."""
    word, space, count = line.rstrip().rpartition(" ")
    if is_flagged := count == OVERWRITE:
        word, space, count = word.rpartition(" ")
    try:
        int(count)
    except ValueError:
        return None, False
    return (word if space else None), is_flagged


@dataclass(frozen=True)
class Index:
    """The part of an .idx file that the .bin file must match."""

    type: np.dtype[Any]
    sentences: int
    tokens: int


def check_texts(data: Path, subset: str | None = None) -> None:
    """Check the binarised texts of a data folder, or of one subset, and their dictionaries.

    Raises: ValueError naming the file and its problem; OSError.
    """
    sizes, counts = check_dictionaries(data), dict[str, tuple[Path, int]]()
    name = glob.escape(subset) if subset else "*"
    for file in sorted(data.glob(f"{name}.*idx")):
        pair = re.fullmatch(r"(.+\.([^.]+)-([^.]+))\.(\2|\3)", file.stem)
        content = file.with_suffix(".bin")
        if pair is None and not content.exists():
            continue  # not one of fairseq's
        index = _check_index(file, least=1 if pair else 0)
        if index is None:
            continue
        _check_content(content, file, index, sizes.get(pair[4]) if pair else None, pair[4] if pair else "")
        if pair:
            other, count = counts.setdefault(pair[1], (file, index.sentences))
            if count != index.sentences:
                raise ValueError(f"{file}: {index.sentences:,} sentences, but {other.name} has {count:,}; {AGAIN}")
    for file in sorted(data.glob(f"{name}.*-*.*.bin")):
        if not file.with_suffix(".idx").is_file():
            raise ValueError(f"{file.with_suffix('.idx')}: missing; {AGAIN}")


def sentence_lengths(file: Path) -> list[int]:
    """Return the number of tokens of every sentence in an .idx file; empty if there is none or its format is older."""
    if not file.is_file():
        return []
    with open_any_size(file) as opened:
        beginning = opened.read(HEADER.size)
        if not beginning.startswith(MAGIC):
            return []
        lengths = opened.read(4 * HEADER.unpack(beginning)[3])
    return list(map(int, np.frombuffer(lengths, "<i4")))


def require_subset(data: Path, subset: str, source: str, target: str) -> None:
    """Check that a subset exists in both languages, binarised or as raw text.

    Raises: ValueError naming the folder, the subset and the language.
    """
    for language in (source, target):
        names = [f"{subset}.{pair}.{language}" for pair in (f"{source}-{target}", f"{target}-{source}")]
        if not any((data / f"{name}{ending}").is_file() for name in names for ending in ("", ".bin")):
            raise ValueError(f"{data}: has no binarised {subset} set in {language}")


def _check_index(file: Path, least: int) -> Index | None:
    """Check an .idx file and return its `Index`; return None for an older format.

    least: number of tokens that every sentence must have
    """
    with open_any_size(file) as opened:
        size, beginning = os.fstat(opened.fileno()).st_size, opened.read(HEADER.size)
        if beginning.startswith(OLDER_MAGICS):
            return None
        if len(beginning) < HEADER.size or not beginning.startswith(MAGIC):
            raise ValueError(f"{file}: damaged: begins with {beginning[:9]!r}, not {MAGIC!r} and a header; {AGAIN}")
        _, version, code, sentences = HEADER.unpack(beginning)
        if version != 1:
            raise ValueError(f"{file}: version {version}: must be 1; {AGAIN}")
        if code not in TYPES:
            raise ValueError(f"{file}: type of token ids {code}: must be one of {', '.join(map(str, TYPES))}; {AGAIN}")
        if sentences == 0:
            raise ValueError(f"{file}: contains no sentences; remove it and its .bin file if you do not need them")
        if size != HEADER.size + 12 * sentences:
            raise ValueError(
                f"{file}: damaged: {size:,} bytes; its {sentences:,} sentences need "
                f"{HEADER.size + 12 * sentences:,}; {AGAIN}"
            )
        kind, tokens = np.dtype(TYPES[code]), 0
        for first, lengths, offsets in _sentences(opened.fileno(), sentences):
            ends = tokens + np.cumsum(lengths, dtype=np.int64)
            wrong = (lengths < least) | (offsets != (ends - lengths) * kind.itemsize)
            if wrong.any():
                number = int(wrong.argmax())
                raise ValueError(
                    f"{file}: damaged: sentence {first + number + 1:,} has {lengths[number]:,} tokens at byte "
                    f"{offsets[number]:,}: must have at least {least}, right after the sentence before it; {AGAIN}"
                )
            tokens = int(ends[-1])
    return Index(kind, sentences, tokens)


def _sentences(descriptor: int, count: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield, for each block of sentences, the index of the first one, and the lengths and byte offsets of all."""
    for first in range(0, count, SENTENCES):
        size = min(SENTENCES, count - first)
        lengths = os.pread(descriptor, 4 * size, HEADER.size + 4 * first)
        offsets = os.pread(descriptor, 8 * size, HEADER.size + 4 * count + 8 * first)
        yield first, np.frombuffer(lengths, "<i4"), np.frombuffer(offsets, "<i8")


def _check_content(file: Path, index_file: Path, index: Index, symbols: int | None, language: str) -> None:
    """Check the size of a .bin file, and its token ids if the dictionary is known."""
    with open_any_size(file) as opened:
        size, expected = os.fstat(opened.fileno()).st_size, index.tokens * index.type.itemsize
        if size != expected:
            raise ValueError(f"{file}: damaged: {size:,} bytes, but {index_file.name} needs {expected:,}; {AGAIN}")
        while symbols is not None and (block := opened.read(BLOCK)):
            ids = np.frombuffer(block, index.type)
            for token in (int(ids.max()), int(ids.min())):
                if not 0 <= token < symbols:
                    raise ValueError(
                        f"{file}: token id {token}: must be 0 to {symbols - 1:,}, because dict.{language}.txt has "
                        f"{symbols - len(SPECIAL):,} words; {AGAIN}"
                    )
