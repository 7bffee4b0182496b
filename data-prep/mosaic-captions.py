#!/usr/bin/env python3
"""Make a caption corpus of mosaics of photographs, with features of an image model.

    data-prep/mosaic-captions.py --images DATA --network RUN [--out DATA] [--mosaics TRAIN VALID TEST] [--seed 1]

A mosaic has 1 to 6 photographs of at most 3 classes on a grid of 2 x 3 cells. Each of its five captions combines one of
five beginnings with a statement about number, class and position, such as "two cats above a truck" or "a ship between
a frog and a dog"; so captions are true by construction. The features of a photograph are the input to the model's
classifier. OUT.raw receives both in the formats of COCO's captions and bottom-up features, from which the data folder
OUT is prepared as by `fairseq-resid prepare-captions`.

Training mosaics use photographs from the split `valid`, on which the model was not trained. Validation mosaics use a
tenth of the split `test`, and test mosaics use the rest of it.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_resid.cli import frame
from fairseq_resid.cli.progress import Progress
from fairseq_resid.data import folders
from fairseq_resid.data.captions import prepare_captions as prepare
from fairseq_resid.data.images import image_folder as images
from fairseq_resid.fairseq_patches.loading import load_checkpoint
from fairseq_resid.runs.run import Run
from fairseq_resid.runs.trained_on import find_data, is_trained_on
from fairseq_resid.scoring.loading import load

ROWS, COLUMNS, MOST_CLASSES = 2, 3, 3
NUMBERS = ("no", "a", "two", "three", "four", "five", "six")
PLURALS = {"deer": "deer"}
BEGINNINGS = ("", "there {be} ", "a picture of ", "a photo of ", "this picture shows ")
FIRST_ID = 1
HELD_OUT = 10  # every tenth test photograph is used for validation
SIZES = (10_000, 500, 1_000)
TOGETHER = 500  # photographs per batch


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


def features_of(run: Run, data: Path, split: str, chosen: Sequence[int], cpu: bool) -> dict[int, np.ndarray]:
    """Return the input to a model's classifier for the chosen photographs from a split, by their index."""
    loaded = load(run, run.last, data, cpu)
    seen: list[torch.Tensor] = []
    loaded.model.classify.register_forward_pre_hook(lambda _, given: seen.append(given[0].float().cpu()))
    dataset, found = loaded.task.open(split), dict[int, np.ndarray]()
    with torch.no_grad(), Progress(f"features of {split}", len(chosen), "photographs") as progress:
        for start in range(0, len(chosen), TOGETHER):
            now = list(chosen[start : start + TOGETHER])
            loaded.model(**loaded.moved(dataset.collater(now))["net_input"])
            pooled = seen.pop()
            found |= zip(now, (pooled.flatten(2).mean(dim=2) if pooled.dim() > 2 else pooled).numpy(), strict=True)
            progress.advance(len(now))
    return found


def check_network(run: Run, data: Path) -> None:
    """Raise ValueError unless a model was trained on a data folder, but neither on its split `valid` nor on `test`."""
    state = load_checkpoint(run.checkpoint(run.last.name))
    trained = find_data(run, state)
    if folders.IMAGES.fingerprint(trained) != folders.IMAGES.fingerprint(data):
        raise ValueError(f"{run.path}: was trained on {trained}, which differs from --images {data}")
    for split in ("valid", "test"):
        if is_trained_on(state.get("cfg"), split):
            raise ValueError(
                f"{run.path}: was trained on the split {split}; mosaics need photographs that it has not seen"
            )


def make(data: Path, run: Run, out: Path, counts: Sequence[int], seed: int, cpu: bool) -> None:
    """Write the captions and features of all mosaics to OUT.raw, and prepare the data folder OUT from them."""
    if out.exists():
        raise ValueError(f"{out}: exists; remove it or choose another --out")
    check_network(run, data)
    raw, record = out.with_name(f"{out.name}.raw"), images.ImageRecord.of(data)
    made = planned(data, counts, seed)
    size = (record.shape[1], record.shape[2])
    lines, described = [], []
    for split, parts in made.items():
        used = sorted({index for mosaic, _ in parts for index in mosaic.cells.values()})
        features = features_of(run, data, split, used, cpu)
        lines += [as_line(mosaic, features, size) for mosaic, _ in parts]
        described += [as_json(mosaic, texts) for mosaic, texts in parts]
    raw.mkdir(parents=True, exist_ok=True)
    (raw / "features.tsv").write_text("".join(f"{line}\n" for line in lines))
    (raw / "dataset.json").write_text(json.dumps({"dataset": "mosaics", "images": described}))
    photographs = images.open_split(data, "test", record)["pixels"]
    drawn = {str(mosaic.number): mosaic for mosaic, _ in made["test"]}
    options = prepare.CaptionOptions(
        raw / "dataset.json", raw / "features.tsv", out, thumbnail=lambda image: drawn[image].draw(photographs)
    )
    prepare.prepare(prepare.CUSTOM, options)


@frame.command("mosaic-captions", "Make a caption corpus of mosaics of photographs.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run the script."""
    parser.prog = Path(__file__).name
    add, count = parser.add_argument, frame.integer(1)
    add("--images", type=Path, required=True, metavar="DATA", help="data folder of images, made by prepare-images")
    add("--network", type=Path, required=True, metavar="RUN", help="image run trained on the split train alone")
    add("--out", type=Path, default=Path("data-bin/mosaic-captions"), metavar="DATA", help="default: %(default)s")
    add(
        "--mosaics", type=count, nargs=3, default=SIZES, metavar=("TRAIN", "VALID", "TEST"), help="default: %(default)s"
    )
    add("--seed", type=frame.integer(0), default=1, metavar="N", help="seed of the mosaics (default: %(default)s)")
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    args = parser.parse_args(argv)
    make(args.images, Run(args.network), args.out, args.mosaics, args.seed, args.cpu)


if __name__ == "__main__":
    sys.exit(main())
