"""Subwords, as passed to every engine: special symbols, vocabularies, batches, and length limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

EOS, BOS, PAD, UNK = "</s>", "<s>", "<pad>", "<unk>"


def symbols(dictionary: Any) -> list[str]:
    """Return the symbols of a fairseq dictionary, which engines look up by name.

    Raises: ValueError if fairseq's special symbols have other names or two symbols are equal.
    """
    found = list(dictionary.symbols)
    special = [dictionary[index] for index in (dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk())]
    if special != [BOS, PAD, EOS, UNK] or len(set(found)) != len(found):
        raise ValueError(f"dictionary of {len(found):,} symbols: must contain {BOS} {PAD} {EOS} {UNK}, each once")
    return found


def check_vocabulary(file: Path, words: Collection[str]) -> None:
    """Check that a vocabulary has the special symbols, no word twice, and no word that would break a printed line.

    Raises: ValueError naming the file.
    """
    if len(set(words)) != len(words) or not {BOS, PAD, EOS, UNK} <= set(words):
        raise ValueError(f"{file}: {len(words):,} words: must contain {BOS} {PAD} {EOS} {UNK}, and each word only once")
    for word in words:
        if not word or "\n" in word or "\r" in word or "\0" in word:
            raise ValueError(f"{file}: {word[:40]!r}: must be a word without line breaks or NUL")


def batches(sources: Sequence[Sequence[str]], size: int) -> Iterator[list[int]]:
    """Yield the indices of the sources in batches of `size`, sorted by length: a batch has a single maximum length."""
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def check_lengths(sentences: Sequence[Sequence[str]], most: int, name: str) -> None:
    """Raise ValueError for a sentence with more than `most` subwords, including </s>; name: "source" or "target"."""
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) >= most:
            raise ValueError(f"{name} {number}: {len(sentence):,} subwords; the model accepts at most {most - 1:,}")
