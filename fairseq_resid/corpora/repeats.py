"""Sentences that occur twice: valid and test sentences that are in the training text too, and repeated training pairs.

Lines are compared as the model sees them, exactly: after normalisation, tokenisation and cleaning.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ..commands.progress import Progress

Sides = tuple[Path, Path]
KINDS = ("source", "target", "pair")
# How many pairs are read between two looks at the progress.
TOGETHER = 10_000


def overlap(train: Sides, evaluation: Mapping[str, Sides], total: int | None) -> dict[str, dict[str, list[int]]]:
    """Return the lines of each evaluation text that are in the training text: {split: {"source": [lines], ...}}.

    Lines count from 1. "source": the sentence is a training source; "target": its translation is a training target;
    "pair": both, in one training pair.
    """
    # Of every evaluation sentence, where it stands: (split, line).
    places: tuple[dict[bytes, list[tuple[str, int]]], ...] = (defaultdict(list), defaultdict(list))
    pairs: dict[tuple[bytes, bytes], list[tuple[str, int]]] = defaultdict(list)
    for split, files in evaluation.items():
        for number, pair in enumerate(_pairs(files), start=1):
            for side, line in enumerate(pair):
                places[side][line].append((split, number))
            pairs[pair].append((split, number))
    sources, targets = map(set, places)
    seen: tuple[set[bytes], set[bytes], set[tuple[bytes, bytes]]] = (set(), set(), set())
    for source, target in _shown("compare", _pairs(train), total):
        if source in sources:
            seen[0].add(source)
            if (source, target) in pairs:
                seen[2].add((source, target))
        if target in targets:
            seen[1].add(target)
    found: dict[str, dict[str, list[int]]] = {}
    tables = {"source": (places[0], seen[0]), "target": (places[1], seen[1]), "pair": (pairs, seen[2])}
    for split in evaluation:
        found[split] = {
            kind: sorted(number for item in hits for where, number in table[item] if where == split)  # type: ignore
            for kind, (table, hits) in tables.items()
        }
    return found


def deduplicate(train: Sides, evaluation: Iterable[Sides], outputs: Sides, total: int | None) -> dict[str, int]:
    """Write the training pairs without those that came before, and without those that are valid or test pairs.

    Returns: pairs in and out, and the drops by reason: `repeated`, `in_evaluation`.
    A pair is known again by 64 bits of its hash: 36M pairs take 0.3 GB, and lose one by mistake in 1 of 28,000 corpora.
    """
    held_out = {pair for files in evaluation for pair in _pairs(files)}
    hashes = np.fromiter((_hash(pair) for pair in _shown("hash", _pairs(train), total)), dtype=np.uint64)
    first = np.zeros(len(hashes), dtype=bool)
    first[np.unique(hashes, return_index=True)[1]] = True
    counts = {"in": len(hashes), "out": 0, "repeated": 0, "in_evaluation": 0}
    with outputs[0].open("wb") as source, outputs[1].open("wb") as target:
        for is_first, pair in zip(first, _shown("deduplicate", _pairs(train), total), strict=True):
            reason = "in_evaluation" if pair in held_out else "out" if is_first else "repeated"
            counts[reason] += 1
            if reason == "out":
                source.write(pair[0])
                target.write(pair[1])
    return counts


def _hash(pair: tuple[bytes, bytes]) -> int:
    return int.from_bytes(hashlib.blake2b(pair[0] + pair[1], digest_size=8).digest(), "little")


def _pairs(files: Sides) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a text that this preparation wrote: every line ends in LF."""
    with ExitStack() as stack:
        source, target = (stack.enter_context(file.open("rb")) for file in files)
        yield from zip(source, target, strict=True)


def _shown(what: str, pairs: Iterator[tuple[bytes, bytes]], total: int | None) -> Iterator[tuple[bytes, bytes]]:
    with Progress(what, total, "pairs") as progress:
        for number, pair in enumerate(pairs, start=1):
            if number % TOGETHER == 0:
                progress.advance(TOGETHER)
            yield pair
