"""Find repeated training pairs, and validation and test sentences that also occur in the training text.

Lines are compared in the form that the model receives: after normalisation, tokenisation and cleaning. In particular,
lines are equal if they differ only in what the subword model's own normalisation removes, such as repeated spaces.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...cli.progress import Progress
from .folder import Overlap, PairCounts

Sides = tuple[Path, Path]
# Number of pairs per update of the progress bar.
TOGETHER = 10_000


def overlap(train: Sides, evaluation: Mapping[str, Sides], total: int | None) -> dict[str, Overlap]:
    """Return the lines of each evaluation text that also occur in the training text, by split."""
    # The places of each evaluation sentence: (split, line).
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

    def lines(split: str, repeated: Iterable[list[tuple[str, int]]]) -> tuple[int, ...]:
        return tuple(sorted(number for places in repeated for name, number in places if name == split))

    return {
        split: Overlap(
            lines(split, (places[0][line] for line in seen[0])),
            lines(split, (places[1][line] for line in seen[1])),
            lines(split, (pairs[pair] for pair in seen[2])),
        )
        for split in evaluation
    }


def deduplicate(
    train: Sides, evaluation: Iterable[Sides], outputs: Sides, total: int | None, normalise: Callable[[str], str]
) -> PairCounts:
    """Write the training pairs that are neither `repeated` nor validation or test pairs (`in_evaluation`).

    normalise: the normalisation before segmentation, which is applied to the lines that are compared

    Pairs are compared by 64-bit hashes: 36M pairs take 0.3 GB, and in 1 of 28,000 corpora of this size a pair is
    dropped by mistake.
    """

    def hash_of(pair: tuple[bytes, bytes]) -> int:
        source, target = (normalise(line.decode()) for line in pair)
        return int.from_bytes(hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), "little")

    held_out = {hash_of(pair) for files in evaluation for pair in _pairs(files)}
    hashes = np.fromiter((hash_of(pair) for pair in _shown("hash", _pairs(train), total)), dtype=np.uint64)
    first = np.zeros(len(hashes), dtype=bool)
    first[np.unique(hashes, return_index=True)[1]] = True
    kept, dropped = 0, {"repeated": 0, "in_evaluation": 0}
    with outputs[0].open("wb") as source, outputs[1].open("wb") as target:
        for found, is_first, pair in zip(hashes, first, _shown("deduplicate", _pairs(train), total), strict=True):
            if int(found) in held_out or not is_first:
                dropped["in_evaluation" if int(found) in held_out else "repeated"] += 1
                continue
            kept += 1
            source.write(pair[0])
            target.write(pair[1])
    return PairCounts(len(hashes), kept, dropped)


def _pairs(files: Sides) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a text written by this preparation, in which every line ends in LF."""
    with ExitStack() as stack:
        source, target = (stack.enter_context(file.open("rb")) for file in files)
        yield from zip(source, target, strict=True)


def _shown(what: str, pairs: Iterator[tuple[bytes, bytes]], total: int | None) -> Iterator[tuple[bytes, bytes]]:
    with Progress(what, total, "pairs") as progress:
        for number, pair in enumerate(pairs, start=1):
            if number % TOGETHER == 0:
                progress.advance(TOGETHER)
            yield pair
