"""Mosaics of photographs, and captions from a small grammar, which are true of their mosaics by construction.

A mosaic has 1 to 6 photographs of at most 3 classes on a grid of 2 x 3 cells. Each of its five captions combines one of
five beginnings with a statement about number, class and position, such as "two cats above a truck" or "a ship between
a frog and a dog".
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..images import folder as images

ROWS, COLUMNS, MOST_CLASSES = 2, 3, 3
NUMBERS = ("no", "a", "two", "three", "four", "five", "six")
PLURALS = {"deer": "deer"}
BEGINNINGS = ("", "there {be} ", "a picture of ", "a photo of ", "this picture shows ")
FIRST_ID = 1
HELD_OUT = 10  # every tenth test photograph is used for validation


@dataclass(frozen=True)
class Mosaic:
    """Photographs on a grid: the mosaic's number and split, and the index of the photograph in each used cell.

    The cells are numbered from 0 to 5, row by row.
    """

    number: int
    split: str
    cells: dict[int, int]

    def box(self, cell: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return the box of a cell in pixels: left, top, right, bottom. size: height and width of a photograph."""
        height, width = size
        top, left = cell // COLUMNS * height, cell % COLUMNS * width
        return left, top, left + width, top + height

    def draw(self, photographs: np.ndarray) -> np.ndarray:
        """Return the mosaic of photographs (n, 3, H, W) as bytes (2H, 3W, 3), on a black background."""
        _, _, height, width = photographs.shape
        picture = np.zeros((ROWS * height, COLUMNS * width, 3), np.uint8)
        for cell, index in self.cells.items():
            left, top, right, bottom = self.box(cell, (height, width))
            picture[top:bottom, left:right] = photographs[index].transpose(1, 2, 0)
        return picture


def plan(split: str, count: int, first: int, labels: np.ndarray, chosen: np.ndarray, seed: int) -> list[Mosaic]:
    """Return `count` mosaics of photographs. The result depends only on the arguments.

    first: number of the first mosaic; labels: (n,), the class of every photograph
    chosen: (m,), the indices of the photographs that may be used
    """
    by_class = [chosen[labels[chosen] == label] for label in np.unique(labels[chosen])]
    made = []
    for number in range(first, first + count):
        generator = np.random.Generator(np.random.Philox(key=[seed, number]))
        cells = sorted(generator.permutation(ROWS * COLUMNS)[: generator.integers(1, ROWS * COLUMNS + 1)].tolist())
        most = min(len(cells), len(by_class), MOST_CLASSES)
        classes = generator.permutation(len(by_class))[: generator.integers(1, most + 1)]
        each = generator.permutation(np.concatenate([classes, generator.choice(classes, len(cells) - len(classes))]))
        photographs = [int(generator.choice(by_class[label])) for label in each]
        made.append(Mosaic(number, split, dict(zip(cells, photographs, strict=True))))
    return made


def some(count: int, noun: str) -> str:
    """Return a number and a noun in words, such as "a cat" or "two cats"."""
    if count > 1:
        plural = PLURALS.get(noun, f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s")
        return f"{NUMBERS[count]} {plural}"
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def listed(nouns: Sequence[str]) -> str:
    """Return all objects in words, in order of their first appearance."""
    return " and ".join(some(count, noun) for noun, count in Counter(nouns).items())


def statements(nouns: Mapping[int, str]) -> list[str]:
    """Return the statements of the grammar that are true of a mosaic, given the noun in each used cell."""
    rows = [[nouns[cell] for cell in range(row * COLUMNS, (row + 1) * COLUMNS) if cell in nouns] for row in range(ROWS)]
    found = [listed(list(nouns.values()))]
    if all(rows):
        found += [f"{listed(rows[0])} above {listed(rows[1])}", f"{listed(rows[1])} below {listed(rows[0])}"]
    for row in rows:
        if len(row) == COLUMNS:
            left, middle, right = row
            around = some(2, left) if left == right else f"{some(1, left)} and {some(1, right)}"
            found.append(f"{some(1, middle)} between {around}")
        elif len(row) == len(nouns) == 2:
            left, right = row
            found += [
                f"{some(1, left)} to the left of {some(1, right)}",
                f"{some(1, right)} to the right of {some(1, left)}",
            ]
    return found


def captions(mosaic: Mosaic, nouns: Mapping[int, str], seed: int) -> list[str]:
    """Return the captions of a mosaic: one for each beginning, each with one of its statements."""
    generator = np.random.Generator(np.random.Philox(key=[seed, mosaic.number], counter=1 << 64))
    found, said = statements(nouns), []
    for beginning in BEGINNINGS:
        statement = found[generator.integers(len(found))]
        be = "is" if statement.split()[0] in ("a", "an") else "are"
        said.append(beginning.format(be=be) + statement)
    return said


def planned(data: Path, counts: Sequence[int], seed: int) -> dict[str, list[tuple[Mosaic, list[str]]]]:
    """Return the mosaics and their captions, by the split of their photographs: `valid` or `test`."""
    record = images.ImageRecord.of(data)
    names = [name.replace("_", " ").lower() for name in record.classes]
    found: dict[str, list[tuple[Mosaic, list[str]]]] = {"valid": [], "test": []}
    first = FIRST_ID
    for split, count in zip(("train", "valid", "test"), counts, strict=True):
        source = "valid" if split == "train" else "test"
        labels = np.array(images.open_split(data, source, record)["label"])
        every = np.arange(len(labels))
        held = every % HELD_OUT == 0
        chosen = every if split == "train" else every[held if split == "valid" else ~held]
        for mosaic in plan(split, count, first, labels, chosen, seed):
            nouns = {cell: names[labels[index]] for cell, index in mosaic.cells.items()}
            found[source].append((mosaic, captions(mosaic, nouns, seed)))
        first += count
    return found


def as_json(mosaic: Mosaic, texts: Sequence[str]) -> dict[str, Any]:
    """Return a mosaic as an image in Karpathy's JSON format."""
    split = {"valid": "val"}.get(mosaic.split, mosaic.split)
    return {
        "imgid": mosaic.number,
        "split": split,
        "sentences": [{"tokens": text.split(), "raw": text} for text in texts],
    }


def as_line(mosaic: Mosaic, features: Mapping[int, np.ndarray], size: tuple[int, int]) -> str:
    """Return the line of a mosaic in a TSV file of bottom-up features. features: those of the photographs, by index."""
    boxes = np.array([mosaic.box(cell, size) for cell in mosaic.cells], "<f4")
    vectors = np.stack([features[index] for index in mosaic.cells.values()]).astype("<f4")
    code = (base64.b64encode(part.tobytes()).decode() for part in (boxes, vectors))
    return "\t".join(map(str, (mosaic.number, COLUMNS * size[1], ROWS * size[0], len(boxes), *code)))
