"""Raw source text, cleaned and segmented like the training text of a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...data.text import folder
from ...data.text.folder import Corpus
from ...data.text.forms import plain_words


class TextConverter:
    """Converts raw source text to token ids, and translations back to raw text.

    Raises: ValueError if the data folder has no subword model; OSError if the folder does not exist.
    """

    def __init__(self, data: Path) -> None:
        corpus = Corpus.read(data)
        self.segmenter = corpus.segmenter()
        self.form = folder.read(corpus.path).forms()[corpus.source]
        self.target = corpus.form

    def encode(self, line: str, dictionary: Any) -> Any:
        """Return the ids of a raw line in fairseq's dictionary, including EOS; None if the cleaned line is empty."""
        words = plain_words(self.segmenter.encode([self.form.to_model(line)])[0])
        return dictionary.encode_line(" ".join(words), add_if_not_exist=False).long() if words else None

    def restore(self, decoded: str) -> str:
        """Return decoded subwords as raw text in the target language."""
        return self.target.to_raw(self.segmenter.join(decoded))
