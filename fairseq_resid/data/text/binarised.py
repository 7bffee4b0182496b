"""Check the dictionaries and binarised texts of a data folder before fairseq opens them.

    DATA/dict.LANG.txt               a line for each word: WORD COUNT, or WORD COUNT #fairseq:overwrite
    DATA/SPLIT.SRC-TGT.LANG.idx      header, number of tokens (int32) and byte offset (int64) of every sentence
    DATA/SPLIT.SRC-TGT.LANG.bin      the token ids of all sentences, one after the other

fairseq would read other sentences from a .bin file that does not belong to its .idx file, and train without references
if one side is missing. The format is that of MMapIndexedDataset in fairseq/data/indexed_dataset.py; the older formats
(lazy, cached, huffman) are not checked.
"""

from __future__ import annotations

import glob
import re
import struct
from pathlib import Path

import numpy as np

from ...files import read_lines

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's symbols, which precede those in the file
MAGIC = b"MMIDIDX\x00\x00"
OLDER_MAGICS = (b"TNTIDX\x00\x00", b"HUFFIDX\x00")
HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the data type, number of sentences
ID_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8}  # size of a token id by the code of the data type
ENTRY = re.compile(r".+ -?\d+( #fairseq:overwrite)?")  # of a dictionary
AGAIN = "prepare the data folder again"


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


def sentence_lengths(file: Path) -> list[int]:
    """Return the number of tokens of every sentence in an .idx file; empty if there is none or its format is older."""
    found = _read_index(file) if file.is_file() else None
    return [] if found is None else list(map(int, found[0]))


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
