"""Translate raw text with an exported model. This requires the engine; CTranslate2 and ONNX Runtime need no torch.

>>> Translator("exported").translate(["A sentence.", "Another one."])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from ..data.text.forms import TextForm
from ..data.text.segmentation import Segmenter
from ..scoring.source import TextConverter, check_length, read_line
from .engine import load, read


class Translator:
    """An exported model, ready to translate with the settings of the run's evaluation.

    threads: number of CPU threads; 0 means the engine's default. beam, length_penalty: None for the run's settings
    Raises: ValueError or OSError naming the file and the problem, or the engine that is not installed.
    """

    def __init__(
        self, folder: str | Path, threads: int = 0, beam: int | None = None, length_penalty: float | None = None
    ) -> None:
        self.record = read(Path(folder))
        given: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty}
        self.search = replace(
            self.record.search, nbest=1, **{name: value for name, value in given.items() if value is not None}
        )
        text = self.record.text
        if text.model is None:
            raise ValueError(f"{folder}: contains no subword model, because the data folder of the run had none")
        forms = TextForm.of_sides(text.source, text.target, text.form, text.normalize, text.split_hyphens)
        segmenter = Segmenter(text.post_process, Path(folder) / text.model)
        self.text = TextConverter(segmenter, forms[text.source], forms[text.target])
        self.engine = load(Path(folder), threads)

    @property
    def longest(self) -> int:
        """The maximum number of subwords in a line, including </s>."""
        return self.record.longest[0]

    @overload
    def translate(self, lines: str) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, lines: Iterable[str]) -> list[str]: ...
    def translate(self, lines: str | Iterable[str]) -> str | list[str]:
        """Return the translation of every line, or of one str; the translation of a blank line is empty.

        Raises: ValueError naming the line that is too long for the model.
        """
        if isinstance(lines, str):
            return self.translate([lines])[0]
        return self.decode([self.encode(line, number) for number, line in enumerate(lines, start=1)])

    def encode(self, line: str | bytes, number: int) -> list[str] | None:
        """Return the subwords of a line, or None for a blank line.

        Raises: ValueError naming the line if it is not UTF-8 or is too long for the model.
        """
        subwords = self.text.subwords(read_line(line, number))
        check_length(len(subwords) + 1, number, self.longest)
        return subwords or None

    def decode(self, encoded: Sequence[list[str] | None]) -> list[str]:
        """Return the translation of each encoded line, and "" for None."""
        translations = [""] * len(encoded)
        filled = {index: subwords for index, subwords in enumerate(encoded) if subwords is not None}
        found = self.engine.translate(list(filled.values()), self.search) if filled else []
        for index, hypotheses in zip(filled, found, strict=True):
            translations[index] = self.text.restore(" ".join(hypotheses[0].tokens))
        return translations
