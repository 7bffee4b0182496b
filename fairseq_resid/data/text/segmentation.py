"""Segment text into subwords and join them again, with the model in a data folder.

The kinds of models are named like the values of fairseq's --post-process:

    sentencepiece   spm.model, a sentencepiece BPE: "▁" marks the beginning of a word
    subword_nmt     bpe.codes, the merges of subword-nmt: "@@" marks a subword that does not end its word
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...files import read_lines

FILES = {"sentencepiece": "spm.model", "subword_nmt": "bpe.codes"}
VERSION = re.compile(r"#version:\s+0\.[12](\.0+)*\s*")  # the first line of bpe.codes


class Segmenter:
    """Segments text into subwords with the model of a data folder, and joins them again.

    kind: a key of FILES; model: the path of the model
    Raises: ValueError if the kind is unknown, or the model is missing or damaged.
    """

    def __init__(self, kind: str | None, model: Path) -> None:
        if kind not in FILES:
            raise ValueError(f"{model}: unknown kind of subwords {kind}: must be one of {', '.join(FILES)}")
        if not model.is_file():
            raise ValueError(f"{model}: no such subword model")
        self.kind = kind
        try:
            self._model: Any = _load_sentencepiece(model) if kind == "sentencepiece" else _load_subword_nmt(model)
        except (RuntimeError, SystemExit, UnicodeDecodeError) as error:
            raise ValueError(f"{model}: not a {kind} model: {error}") from None

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """Return the subwords of every line."""
        if self.kind == "sentencepiece":
            encoded: list[list[str]] = self._model.encode(list(lines), out_type=str, num_threads=1)
            return encoded
        return [self._model.process_line(line).split() for line in lines]

    def join(self, subwords: str) -> str:
        """Join a line of subwords to text, like fairseq's --post-process."""
        if self.kind == "sentencepiece":
            return subwords.replace(" ", "").replace("\u2581", " ").strip()
        return f"{subwords} ".replace("@@ ", "").rstrip()

    def known(self) -> set[str] | None:
        """Return the model's vocabulary; None for subword-nmt, whose vocabulary comes from the training text."""
        if self.kind != "sentencepiece":
            return None
        numbers = [number for number in range(self._model.vocab_size()) if not self._model.is_unknown(number)]
        return {self._model.id_to_piece(number) for number in numbers}


def _load_sentencepiece(model: Path) -> Any:
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def _load_subword_nmt(model: Path) -> Any:
    from subword_nmt.apply_bpe import BPE

    # subword-nmt itself would print an invalid line to stderr and exit. With an unknown version in the first line of
    # the file, subword-nmt would not fail until the first word.
    lines = read_lines(model)
    while lines and not lines[-1]:
        lines.pop()
    has_version = bool(lines) and lines[0].startswith("#version:")
    if has_version and not VERSION.fullmatch(lines[0]):
        raise ValueError(f"{model}:1: {lines[0][:40]!r}: must be '#version: 0.1' or '#version: 0.2'")
    if len(lines) == has_version:
        raise ValueError(f"{model}: contains no merges; must have one merge of two subwords per line")
    for number, line in enumerate(lines[has_version:], start=1 + has_version):
        if len(line.strip("\r ").split(" ")) != 2:
            raise ValueError(f"{model}:{number}: {line[:40]!r}: must be two subwords separated by a space")
    return BPE(io.StringIO("".join(f"{line}\n" for line in lines)))
