"""BLEU of two trivial baselines: a copy of the source, and the translation of the nearest training sentence.

    fairseq-resid baselines --raw DIR --source en --target vi [--json FILE]

reads DIR/{train,test}.{en,vi} and scores two translations of the test set: (a) a copy of the source and (b) the
target side of the nearest training source. The nearest source has the highest normalised word-level Levenshtein
similarity; ties go to the first sentence in the training set.
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
from ..data.text.bleu import TOKENIZERS, default_tokenizer
from ..files import read_pairs
from ..foreign import say
from ..tasks.text.scoring import bleu

SPLITS = ("train", "test")
QUERIES = 64  # test sentences compared at a time
CHOICES = 32_768  # training sentences compared at a time, which gives 16 MiB of similarities


@dataclass(frozen=True)
class Baselines:
    """BLEU of both baselines and its sacrebleu signature."""

    copy: float
    nearest_neighbour: float
    signature: str

    def line(self) -> str:
        """Return both scores on one line."""
        both = f"source copied {self.copy:.2f}, nearest neighbour {self.nearest_neighbour:.2f}"
        return f"baselines: {both}  BLEU {self.signature}"


def baselines(raw: Path, source: str, target: str, tokenize: str | None = None) -> Baselines:
    """Return the BLEU of copying the test source and of the nearest training sentence's translation.

    tokenize: sacrebleu's tokeniser (default: the one that fits the target language)

    Raises: ValueError naming a file that is missing, empty or not UTF-8, or that differs in length from its
    counterpart.
    """
    (train_source, train_target), (test_source, test_target) = (
        read_pairs(raw / f"{split}.{source}", raw / f"{split}.{target}") for split in SPLITS
    )
    tokenize = tokenize or default_tokenizer(target)
    copy = bleu(test_source, test_target, tokenize)
    neighbours = bleu([train_target[index] for index in nearest(test_source, train_source)], test_target, tokenize)
    return Baselines(copy=copy.value, nearest_neighbour=neighbours.value, signature=copy.signature)


def nearest(queries: Sequence[str], choices: Sequence[str]) -> list[int]:
    """Return, for each query, the index of the choice whose words are most similar; ties go to the first.

    Sentences are compared in blocks, so memory use does not grow with queries × choices.
    """
    numbers: dict[str, int] = {}  # integers, because rapidfuzz compares words by hashes, which may collide

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


@frame.command("baselines", "Print the BLEU of copying the source and of the nearest training sentence's translation.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid baselines`."""
    add = parser.add_argument
    add("--raw", type=Path, required=True, metavar="DIR", help="folder with {train,test}.{SRC,TGT}")
    add("--source", required=True, metavar="SRC", help="source language, as in the file names")
    add("--target", required=True, metavar="TGT", help="target language, as in the file names")
    add("--tokenize", choices=TOKENIZERS, help="sacrebleu's tokeniser (default: the one that fits TGT)")
    add("--json", type=Path, metavar="FILE", help="also write the scores to this file")
    options = parser.parse_args(argv)
    result = baselines(options.raw, options.source, options.target, options.tokenize)
    say(result.line())
    if options.json is not None:
        records.write(options.json, result)
