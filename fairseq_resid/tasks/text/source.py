"""Raw source text of a data folder, cleaned and cut into subwords as its training text was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...data.text import folder
from ...data.text.folder import Corpus
from ...data.text.forms import plain_words


class TextConverter:
    """The source language of a data folder, and its translations as raw text.

    Raises: ValueError if the data folder has no subword model; OSError if it is not there.
    """

    def __init__(self, data: Path) -> None:
        corpus = Corpus.read(data)
        self.segmenter = corpus.segmenter()
        self.form = folder.read(corpus.path).forms()[corpus.source]
        self.target = corpus.form

    def encode(self, line: str, dictionary: Any) -> Any:
        """Return a raw line as fairseq's dictionary numbers it, with the end mark; None if nothing is left of it."""
        words = plain_words(self.segmenter.encode([self.form.to_model(line)])[0])
        return dictionary.encode_line(" ".join(words), add_if_not_exist=False).long() if words else None

    def restore(self, decoded: str) -> str:
        """Return decoded subwords as raw text of the target language."""
        return self.target.to_raw(self.segmenter.join(decoded))
