"""BLEU of two translators that learn nothing, as baselines of a model's BLEU.

    fairseq-resid baselines --raw DIR --source en --target vi [--json FILE]

reads DIR/{train,test}.{en,vi} and scores the test set translated by (a) copying the source and (b) giving the
translation of the nearest training source. Nearest is by normalised word-level Levenshtein similarity; of equally
near ones the first in the training set is taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from .. import records
from ..cli import frame
from ..files import read_pairs
from ..foreign import say
from ..tasks.text.scoring import bleu

QUERIES = 64  # test sentences compared at a time
CHOICES = 32_768  # with so many training sentences: 16 MiB of similarities


@dataclass(frozen=True)
class Baselines:
    """BLEU of both translators and the sacrebleu signature it was computed with."""

    copy: float
    nearest_neighbour: float
    signature: str

    def line(self) -> str:
        """Return both on a line."""
        both = f"source copied {self.copy:.2f}, nearest neighbour {self.nearest_neighbour:.2f}"
        return f"baselines: {both}  BLEU {self.signature}"


def baselines(raw: Path, source: str, target: str) -> Baselines:
    """Return the BLEU of copying the test source, and of the nearest training sentence's translation.

    Raises: ValueError naming the file that is missing, empty, not UTF-8, or of another length than its other side.
    """
    train_source, train_target = read_pairs(raw / f"train.{source}", raw / f"train.{target}")
    test_source, test_target = read_pairs(raw / f"test.{source}", raw / f"test.{target}")
    copy = bleu(test_source, test_target)
    neighbours = bleu([train_target[index] for index in nearest(test_source, train_source)], test_target)
    return Baselines(copy=copy.value, nearest_neighbour=neighbours.value, signature=copy.signature)


def nearest(queries: Sequence[str], choices: Sequence[str]) -> list[int]:
    """Return for each query the index of the choice with the most similar words, the first of equal ones.

    The comparison goes block by block, so that memory does not grow with queries times choices.
    """
    numbers: dict[str, int] = {}  # whole numbers, as rapidfuzz compares sequences by the hashes of their items

    def words(sentence: str) -> list[int]:
        return [numbers.setdefault(word, len(numbers)) for word in sentence.split()]

    indices: list[int] = []
    coded_choices = [words(choice) for choice in choices]
    for start in range(0, len(queries), QUERIES):
        block = [words(query) for query in queries[start : start + QUERIES]]
        best = numpy.full(len(block), -1.0)
        index = numpy.zeros(len(block), dtype=numpy.int64)
        for first in range(0, len(coded_choices), CHOICES):
            similarity = cdist(
                block,
                coded_choices[first : first + CHOICES],
                scorer=Levenshtein.normalized_similarity,
                dtype=numpy.float64,
            )
            column = similarity.argmax(axis=1)
            highest = similarity[numpy.arange(len(block)), column]
            better = highest > best
            best = numpy.where(better, highest, best)
            index = numpy.where(better, column + first, index)
        indices += index.tolist()
    return indices


@frame.command("baselines", "BLEU of copying the source and of the nearest training sentence's translation.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Print the BLEU of both."""
    add = parser.add_argument
    add("--raw", type=Path, required=True, metavar="DIR", help="folder of {train,test}.{SRC,TGT}")
    add("--source", required=True, metavar="SRC", help="source language, as in the file names")
    add("--target", required=True, metavar="TGT", help="target language, as in the file names")
    add("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(argv)
    result = baselines(options.raw, options.source, options.target)
    if options.json is not None:
        records.write(options.json, result)
    say(result.line())
