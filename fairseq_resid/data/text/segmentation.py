"""Segment text into subwords and join them again, with the model in a data folder.

The kinds of models are named like the values of fairseq's --post-process:

    sentencepiece   spm.model, a sentencepiece BPE: "▁" marks the beginning of a word
    subword_nmt     bpe.codes, the merges of subword-nmt: "@@" marks a subword that does not end its word
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILES = {"sentencepiece": "spm.model", "subword_nmt": "bpe.codes"}


class Segmenter:
    """Segments text into subwords with the model of a data folder, and joins them again.

    kind: a key of FILES; model: the path of the model
    Raises: ValueError if the kind is unknown, or the model is missing or damaged.
    """

    def __init__(self, kind: str | None, model: Path) -> None:
        if kind not in FILES:
            raise ValueError(f"{model}: unknown kind of subwords {kind}: must be one of {', '.join(FILES)}")
        self.kind = kind
        try:
            self._model: Any = _load_sentencepiece(model) if kind == "sentencepiece" else _load_subword_nmt(model)
        except (RuntimeError, SystemExit, UnicodeDecodeError) as error:
            raise ValueError(f"{model}: not a {kind} model: {error}") from None

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        if self.kind == "sentencepiece":
            encoded: list[list[str]] = self._model.encode(list(lines), out_type=str, num_threads=1)
            return encoded
        return [self._model.process_line(line).split() for line in lines]

    def join(self, subwords: str) -> str:
        """Join a line of subwords to text, like fairseq's --post-process."""
        if self.kind == "sentencepiece":
            return subwords.replace(" ", "").replace("\u2581", " ").strip()
        return f"{subwords} ".replace("@@ ", "").rstrip()


def _load_sentencepiece(model: Path) -> Any:
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def _load_subword_nmt(model: Path) -> Any:
    from subword_nmt.apply_bpe import BPE

    with model.open(encoding="utf-8", newline="\n") as codes:
        return BPE(codes)  # prints an invalid line to stderr and exits
