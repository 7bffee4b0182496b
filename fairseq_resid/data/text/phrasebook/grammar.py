"""An English to Vietnamese phrasebook, generated from the words and sentence patterns of phrasebook.tsv.

    fairseq-resid prepare phrasebook --out DIR [--seed 1] [--train 8000] [--valid 500] [--test 500]

writes DIR/{train,valid,test}.{en,vi}. In every template the fillers of some slots (its combination: a noun with its
adjective, a verb with its place ...) are dealt once and for all, whatever the seed, to training, validation or test:
a combination of the test set occurs in that template in no training sentence, whatever stands in the other slots.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ....files import partial_of, read_bytes, replacing
from . import table
from .table import Filler, Template, kind

SPLITS = ("train", "valid", "test")
LANGUAGES = ("en", "vi")
HELD_OUT = 0.1  # share of each template's combinations kept for test, and as much again for validation


class Example(NamedTuple):
    """A sentence pair, with the template and the combination of fillers that decided its split."""

    template: str
    combination: tuple[str, ...]
    english: str
    vietnamese: str


class _Space(NamedTuple):
    """The sentences of one template in one split: one choice from every group of slots, the held-out slots first."""

    template: Template
    groups: list[tuple[tuple[str, ...], list[tuple[Filler, ...]]]]

    def size(self) -> int:
        return math.prod(len(choices) for _, choices in self.groups)

    def example(self, index: int) -> Example:
        """Return the sentence pair of this number, from 0 to size - 1."""
        fillers: dict[str, Filler] = {}
        for slots, choices in self.groups:
            index, position = divmod(index, len(choices))
            fillers.update(zip(slots, choices[position], strict=True))
        combination = tuple(fillers[slot].english for slot in self.template.key)
        return Example(self.template.name, combination, *self.template.render(fillers))


@lru_cache(maxsize=1)
def _spaces() -> dict[str, list[_Space]]:
    """Deal every template's combinations to the splits."""
    contents = table.read()

    def choices(slots: Sequence[str]) -> list[tuple[Filler, ...]]:
        """Return every way to fill these slots, two slots of one kind never with the same filler."""
        ways = itertools.product(*(contents.fillers[kind(slot)] for slot in slots))
        return [way for way in ways if len(set(way)) == len(way)]

    spaces: dict[str, list[_Space]] = {split: [] for split in SPLITS}
    for template in contents.sentences:
        others: dict[str, list[str]] = defaultdict(list)
        for slot in template.slots:
            if slot not in template.key:
                others[kind(slot)].append(slot)
        groups = [(tuple(slots), choices(slots)) for slots in others.values()]
        for split, combinations in _deal(template.name, choices(template.key)).items():
            spaces[split].append(_Space(template, [(template.key, combinations), *groups]))
    return spaces


def _deal(template: str, combinations: Sequence[tuple[Filler, ...]]) -> dict[str, list[tuple[Filler, ...]]]:
    """Return the combinations of each split; those first in the order of their digests are held out."""

    def words(combination: tuple[Filler, ...]) -> tuple[str, ...]:
        return tuple(sorted(filler.english for filler in combination))  # two words swapped make no new combination

    def digest(english: tuple[str, ...]) -> bytes:
        return hashlib.sha256("\t".join([template, *english]).encode()).digest()

    order = sorted(set(map(words, combinations)), key=digest)
    count = math.ceil(HELD_OUT * len(order))
    held_out = {**dict.fromkeys(order[:count], "test"), **dict.fromkeys(order[count : 2 * count], "valid")}
    dealt: dict[str, list[tuple[Filler, ...]]] = {split: [] for split in SPLITS}
    for combination in combinations:
        dealt[held_out.get(words(combination), "train")].append(combination)
    return dealt


def capacity() -> dict[str, int]:
    """Return how many pairs the grammar holds for each split."""
    return {split: sum(space.size() for space in spaces) for split, spaces in _spaces().items()}


def _below(generator: random.Random, bound: int) -> int:
    # random() is the one method whose numbers Python promises never to change
    return int(generator.random() * bound)


def _permutation(size: int, generator: random.Random) -> Iterator[int]:
    """Yield 0 ... size - 1 in random order, in memory that grows only with the numbers taken."""
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        index = _below(generator, last + 1)
        yield moved.get(index, index)
        moved[index] = moved.pop(last, last)


def draw(seed: int = 1, train: int = 8000, valid: int = 500, test: int = 500) -> dict[str, list[Example]]:
    """Return the examples of each split, the templates in turn as long as each holds enough.

    Test and validation examples do not depend on the number of training pairs.

    Raises: ValueError if a size is not positive, or larger than the grammar.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    for split, held in capacity().items():
        if sizes[split] < 1:
            raise ValueError(f"{split}: {sizes[split]} pairs asked for, at least 1 is needed")
        if sizes[split] > held:
            raise ValueError(f"{split}: {sizes[split]} pairs asked for, the grammar holds {held}")
    seen: tuple[set[str], set[str]] = (set(), set())
    drawn = {}
    for split in ("test", "valid", "train"):
        state = hashlib.sha256(f"{seed} {split}".encode()).digest()
        generator = random.Random(int.from_bytes(state, "big"))
        examples = _draw_split(_spaces()[split], sizes[split], generator, seen)
        if len(examples) < sizes[split]:
            raise ValueError(f"{split}: {sizes[split]} pairs asked for, the grammar holds {len(examples)}")
        drawn[split] = [examples[index] for index in _permutation(len(examples), generator)]
    return {split: drawn[split] for split in SPLITS}


def _draw_split(
    spaces: list[_Space], size: int, generator: random.Random, seen: tuple[set[str], set[str]]
) -> list[Example]:
    """Take examples from the templates in turn, passing over sentences already in `seen`, which grows."""
    order = [spaces[index] for index in _permutation(len(spaces), generator)]
    streams = {space.template: map(space.example, _permutation(space.size(), generator)) for space in order}
    examples: list[Example] = []
    for turn in itertools.count():
        for template, stream in list(streams.items()):
            if turn % 2 and template.is_rare:
                continue
            unseen = (each for each in stream if not (each.english in seen[0] or each.vietnamese in seen[1]))
            example = next(unseen, None)
            if example is None:
                del streams[template]
                continue
            seen[0].add(example.english)
            seen[1].add(example.vietnamese)
            examples.append(example)
            if len(examples) == size:
                return examples
        if not streams:
            break
    return examples


def generate(seed: int = 1, train: int = 8000, valid: int = 500, test: int = 500) -> dict[str, list[tuple[str, str]]]:
    """Return the (English, Vietnamese) pairs of train, valid and test.

    Raises: ValueError if a size is not positive, or larger than the grammar.
    """
    drawn = draw(seed, train, valid, test)
    return {split: [(item.english, item.vietnamese) for item in examples] for split, examples in drawn.items()}


def files(pairs: dict[str, list[tuple[str, str]]]) -> dict[str, bytes]:
    """Return the content of each file of the corpus, by name: UTF-8, LF, one sentence a line."""
    return {
        f"{split}.{language}": "".join(f"{pair[side]}\n" for pair in pairs[split]).encode("utf-8")
        for split in SPLITS
        for side, language in enumerate(LANGUAGES)
    }


def write(folder: Path, contents: dict[str, bytes]) -> bool:
    """Write the files into a new folder, all or none; leave it alone if it holds them already.

    Returns: whether anything was written.
    Raises: ValueError if the folder, or its .partial, holds something else.
    """
    if folder.exists() or folder.is_symlink():
        if not folder.is_dir():
            raise ValueError(f"{folder}: exists and is not a folder")
        names = sorted(path.name for path in folder.iterdir())
        if names == sorted(contents) and all(
            (folder / name).is_file() and read_bytes(folder / name) == content for name, content in contents.items()
        ):
            return False
        if names:
            raise ValueError(f"{folder}: exists with other content; choose another folder or remove it")
    left = partial_of(folder)
    if left.exists() or left.is_symlink():
        # A run that was stopped leaves some of our files. Anything else is the user's.
        if left.is_symlink() or not left.is_dir() or {path.name for path in left.iterdir()} - set(contents):
            raise ValueError(f"{left}: already exists, and this command did not create it; remove it first")
        shutil.rmtree(left)
    with replacing(folder) as partial:
        partial.mkdir(parents=True)
        for name, content in contents.items():
            (partial / name).write_bytes(content)
    return True
