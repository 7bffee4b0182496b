"""An English to Vietnamese phrasebook, generated from the words and sentence patterns of phrasebook.tsv.

    fairseq-resid prepare phrasebook --out DIR [--seed 1] [--train 8000] [--valid 500] [--test 500]

The command writes DIR/{train,valid,test}.{en,vi}. In every template, each combination of fillers for certain slots (a
noun and its adjective, a verb and its place ...) belongs to training, validation or test, independently of the seed.
Therefore, a combination in the test set never occurs in a training sentence of this template, whatever fills the other
slots.
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

from ....files import replacing, working_folder
from . import table
from .table import Filler, Template, kind

SPLITS = ("train", "valid", "test")
LANGUAGES = ("en", "vi")
HELD_OUT = 0.1  # share of each template's combinations reserved for test; the same share is reserved for validation


class Example(NamedTuple):
    """A sentence pair, with its template and the combination of fillers that determines its split."""

    template: str
    combination: tuple[str, ...]
    english: str
    vietnamese: str


class _Space(NamedTuple):
    """All sentences of one template in one split: one choice per group of slots, starting with the held-out slots."""

    template: Template
    groups: list[tuple[tuple[str, ...], list[tuple[Filler, ...]]]]

    def size(self) -> int:
        return math.prod(len(choices) for _, choices in self.groups)

    def example(self, index: int) -> Example:
        """Return the sentence pair with this index, from 0 to size - 1."""
        fillers: dict[str, Filler] = {}
        for slots, choices in self.groups:
            index, position = divmod(index, len(choices))
            fillers.update(zip(slots, choices[position], strict=True))
        combination = tuple(fillers[slot].english for slot in self.template.key)
        return Example(self.template.name, combination, *self.template.render(fillers))


@lru_cache(maxsize=1)
def _spaces() -> dict[str, list[_Space]]:
    """Distribute the combinations of every template over the splits."""
    contents = table.read()

    def choices(slots: Sequence[str]) -> list[tuple[Filler, ...]]:
        """Return every way to fill these slots without using a filler in two slots of the same kind."""
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
    """Return the combinations of each split; those with the smallest digests are held out."""

    def words(combination: tuple[Filler, ...]) -> tuple[str, ...]:
        # Sorted, because swapping two words does not make a new combination.
        return tuple(sorted(filler.english for filler in combination))

    def digest(english: tuple[str, ...]) -> bytes:
        return hashlib.sha256("\t".join([template, *english]).encode()).digest()

    order = sorted(set(map(words, combinations)), key=digest)
    count = math.ceil(HELD_OUT * len(order))
    held_out = {**dict.fromkeys(order[:count], "test"), **dict.fromkeys(order[count : 2 * count], "valid")}
    by_split: dict[str, list[tuple[Filler, ...]]] = {split: [] for split in SPLITS}
    for combination in combinations:
        by_split[held_out.get(words(combination), "train")].append(combination)
    return by_split


def capacity() -> dict[str, int]:
    """Return how many pairs the grammar can generate for each split."""
    return {split: sum(space.size() for space in spaces) for split, spaces in _spaces().items()}


def _below(generator: random.Random, bound: int) -> int:
    # random() is the only method whose sequence Python guarantees never to change
    return int(generator.random() * bound)


def _permutation(size: int, generator: random.Random) -> Iterator[int]:
    """Yield 0 ... size - 1 in random order, using memory in proportion to how many of them are drawn."""
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        index = _below(generator, last + 1)
        yield moved.get(index, index)
        moved[index] = moved.pop(last, last)


def draw(seed: int = 1, train: int = 8000, valid: int = 500, test: int = 500) -> dict[str, list[Example]]:
    """Return the examples of each split, drawn from the templates in turn; a template that has run out is skipped.

    Test and validation examples do not depend on the number of training pairs.

    Raises: ValueError if a size is not positive, or exceeds the capacity of the grammar.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    for split, held in capacity().items():
        if sizes[split] < 1:
            raise ValueError(f"--{split} {sizes[split]}: must be 1 or more")
        if sizes[split] > held:
            raise ValueError(f"--{split} {sizes[split]}: too many pairs; the grammar can generate {held}")
    seen: tuple[set[str], set[str]] = (set(), set())
    drawn = {}
    for split in ("test", "valid", "train"):
        state = hashlib.sha256(f"{seed} {split}".encode()).digest()
        generator = random.Random(int.from_bytes(state, "big"))
        examples = _draw_split(_spaces()[split], sizes[split], generator, seen)
        if len(examples) < sizes[split]:
            raise ValueError(f"--{split} {sizes[split]}: too many pairs; the grammar can generate {len(examples)}")
        drawn[split] = [examples[index] for index in _permutation(len(examples), generator)]
    return {split: drawn[split] for split in SPLITS}


def _draw_split(
    spaces: list[_Space], size: int, generator: random.Random, seen: tuple[set[str], set[str]]
) -> list[Example]:
    """Draw examples from the templates in turn, skipping sentences in `seen` and adding the new ones to it."""
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

    Raises: ValueError if a size is not positive, or exceeds the capacity of the grammar.
    """
    drawn = draw(seed, train, valid, test)
    return {split: [(item.english, item.vietnamese) for item in examples] for split, examples in drawn.items()}


def files(pairs: dict[str, list[tuple[str, str]]]) -> dict[str, bytes]:
    """Return the content of each file of the corpus, by name: UTF-8, LF, one sentence per line."""
    return {
        f"{split}.{language}": "".join(f"{pair[side]}\n" for pair in pairs[split]).encode("utf-8")
        for split in SPLITS
        for side, language in enumerate(LANGUAGES)
    }


def write(folder: Path, contents: dict[str, bytes]) -> bool:
    """Write the files to a new folder, all or none; do nothing if the folder already contains them.

    Returns: whether anything was written.
    Raises: ValueError if the folder, or its .partial, contains anything else.
    """
    left = working_folder(folder)
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
        if names == sorted(contents) and all(
            (folder / name).is_file() and (folder / name).read_bytes() == content for name, content in contents.items()
        ):
            return False
        if names:
            raise ValueError(f"{folder}: exists and contains other files; remove it or choose another folder")
    if left.exists() or left.is_symlink():
        # An interrupted run may have left some of our files. Anything else belongs to the user.
        if left.is_symlink() or not left.is_dir() or {path.name for path in left.iterdir()} - set(contents):
            raise ValueError(f"{left}: already exists, and this command did not create it; remove it first")
        shutil.rmtree(left)
    with replacing(folder) as partial:
        partial.mkdir(parents=True)
        for name, content in contents.items():
            (partial / name).write_bytes(content)
    return True
