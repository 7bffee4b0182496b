"""Raw source text, cleaned and segmented like the training text of a data folder, and its translation line by line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

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

    def restore(self, decoded: str) -> str:
        """Return decoded subwords as raw text in the target language."""
        return self.target.to_raw(self.segmenter.join(decoded))


def token_ids(subwords: Sequence[str], dictionary: Any) -> Any:
    """Return the ids of subwords in fairseq's dictionary, including EOS."""
    return dictionary.encode_line(" ".join(subwords), add_if_not_exist=False).long()


class LineTranslator(ABC):
    """Translates raw lines, in order. The translation of a blank line is empty.

    text: converts the lines and the translations; longest: maximum number of subwords in a line, including </s>
    """

    text: TextConverter
    longest: int

    @abstractmethod
    def best(self, sources: Sequence[list[str]]) -> list[str]:
        """Return the best translation of each source, as subwords separated by spaces."""

    @overload
    def translate(self, lines: str) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, lines: Iterable[str]) -> list[str]: ...
    def translate(self, lines: str | Iterable[str]) -> str | list[str]:
        """Return the translation of every line, or of one str.

        Raises: ValueError naming the line that is too long for the model.
        """
        if isinstance(lines, str):
            return self.translate([lines])[0]
        return self.decode([self.encode(line, number) for number, line in enumerate(lines, start=1)])

    def encode(self, line: str | bytes, number: int) -> list[str]:
        """Return the subwords of a line; none if it is blank.

        Raises: ValueError naming the line if it is not UTF-8 or is too long for the model.
        """
        try:
            text = line if isinstance(line, str) else line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number}: not UTF-8 ({error.reason} at byte {error.start})") from None
        subwords = self.text.subwords(text)
        if len(subwords) >= self.longest:
            raise ValueError(
                f"line {number}: {len(subwords) + 1:,} subwords; the model accepts at most {self.longest:,}"
            )
        return subwords

    def encoded_batches(self, lines: Iterable[str | bytes], together: int) -> Iterator[list[list[str]]]:
        """Yield the encoded lines in batches of `together`.

        Raises: ValueError for an invalid line, after yielding the lines before it.
        """
        encoded: list[list[str]] = []
        for number, line in enumerate(lines, start=1):
            try:
                encoded.append(self.encode(line, number))
            except ValueError:
                yield encoded
                raise
            if len(encoded) == together:
                yield encoded
                encoded = []
        yield encoded

    def decode(self, encoded: Sequence[list[str]]) -> list[str]:
        sources = [subwords for subwords in encoded if subwords]
        found = iter(self.best(sources) if sources else ())
        return [self.text.restore(next(found)) if subwords else "" for subwords in encoded]
