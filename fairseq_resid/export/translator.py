"""Translate raw text with an exported model. This requires the engine; CTranslate2 and ONNX Runtime need no torch.

>>> Translator("exported").translate(["A sentence.", "Another one."])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.text.forms import TextForm
from ..data.text.segmentation import Segmenter
from ..scoring.source import LineTranslator, TextConverter
from .engine import load, read


class Translator(LineTranslator):
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
        self.longest = self.record.longest[0]

    def best(self, sources: Sequence[list[str]]) -> list[str]:
        return [" ".join(hypotheses[0].tokens) for hypotheses in self.engine.translate(sources, self.search)]
