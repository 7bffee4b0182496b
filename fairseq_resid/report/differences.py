"""Find the examples for which the outputs of the systems differ most, and mark words that differ from the reference."""

from __future__ import annotations

import base64
import io
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ..scoring.task import Texts

MOST = 12  # examples


def marked(line: str, reference: str) -> list[tuple[str, bool]]:
    """Return the words of a text, and whether each is outside the passages that it shares with the reference."""
    words, other = line.split(), reference.split()
    kept: set[int] = set()
    for block in SequenceMatcher(None, other, words, autojunk=False).get_matching_blocks():
        kept.update(range(block.b, block.b + block.size))
    return [(word, index not in kept) for index, word in enumerate(words)]


def png(pixels: np.ndarray) -> str:
    """Return pixels (height, width, 3) as a Base64-encoded PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def samples(texts: Texts) -> list[dict[str, Any]]:
    """Return the examples whose chrF differs most between systems, largest difference first; ties by position.

        number, source, references    of the example, from 1
        outputs                       of each system: its name, the marked words and the chrF
        picture                       a PNG file in base 64; "" if there is none

    For a single system, the examples with the lowest chrF are returned. Words are compared with the reference that is
    most similar to the text by chrF.
    """
    from sacrebleu.metrics.chrf import CHRF

    metric, systems = CHRF(), texts.outputs

    def score(line: str, reference: str) -> float:
        return float(metric.sentence_score(line, [reference]).score)

    found = []
    for number, (source, references) in enumerate(zip(texts.sources, texts.references, strict=True), start=1):
        lines = {name: outputs[number - 1] for name, outputs in systems.items()}
        best = {name: max((score(line, text), text) for text in references) for name, line in lines.items()}
        scores = [one for one, _ in best.values()]
        if len(systems) == 1 or len(set(lines.values())) > 1:
            found.append((min(scores) - max(scores), number, source, references, lines, best))
    if len(systems) == 1:  # nothing to compare: show the worst texts
        found.sort(key=lambda row: (min(row[5].values()), row[1]))
    else:
        found.sort(key=lambda row: row[:2])
    return [
        {
            "number": number,
            "source": source,
            "references": references,
            "outputs": [(name, marked(line, best[name][1]), best[name][0]) for name, line in lines.items()],
            "picture": "" if texts.pictures is None else png(texts.pictures[number - 1]),
        }
        for _, number, source, references, lines, best in found[:MOST]
    ]
