"""Raw source text, cleaned and segmented like the training text of a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..data.text.folder import Corpus
from ..data.text.forms import TextForm, is_blank, plain_words


class TextConverter:
    """Converts raw source text to subwords or token ids, and translations back to raw text.

    segmenter: the subword model (data/text/segmentation.py); form, target: the forms of source and target text
    """

    def __init__(self, segmenter: Any, form: TextForm, target: TextForm) -> None:
        self.segmenter, self.form, self.target = segmenter, form, target

    @classmethod
    def of_data(cls, data: Path, direction: tuple[str, str] | None = None) -> TextConverter:
        """Return the converter of a data folder; direction: source and target, if not as the corpus was prepared.

        Raises: ValueError if the data folder has no subword model; OSError if the folder does not exist.
        """
        corpus = Corpus.read(data, direction)
        return cls(corpus.segmenter(), corpus.record.forms()[corpus.source], corpus.form)

    def subwords(self, line: str) -> list[str]:
        """Return the subwords of a raw line: an empty list if the line is blank or empty after cleaning."""
        if is_blank(line):
            return []
        return plain_words(self.segmenter.encode([self.form.to_model(line)])[0])

    def encode(self, line: str, dictionary: Any) -> Any:
        """Return the ids of a raw line in fairseq's dictionary, including EOS; None if the cleaned line is empty."""
        words = self.subwords(line)
        return dictionary.encode_line(" ".join(words), add_if_not_exist=False).long() if words else None

    def restore(self, decoded: str) -> str:
        """Return decoded subwords as raw text in the target language."""
        return self.target.to_raw(self.segmenter.join(decoded))


def read_line(line: str | bytes, number: int) -> str:
    """Return a line, decoded and without its newline. Raises: ValueError naming the line if it is not UTF-8."""
    if isinstance(line, str):
        return line
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {number}: not UTF-8 ({error.reason} at byte {error.start})") from None


def check_length(subwords: int, number: int, longest: int) -> None:
    """Raise ValueError naming the line if it has more subwords than the model accepts."""
    if subwords > longest:
        raise ValueError(f"line {number}: {subwords:,} subwords; the model accepts at most {longest:,}")
