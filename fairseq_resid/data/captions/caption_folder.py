"""The data folder of a caption corpus: DATA/captions.json, captions as text, and memory-mapped region features.

DATA/SPLIT.captions.tsv    a line for each image: its id and its captions, lower-cased and without punctuation
DATA/ref/SPLIT.tsv         the same with the original captions, which are the references for scoring
DATA/dict.captions.txt     the words, in fairseq's format
DATA/SPLIT.regions         number of regions of every image, uint16
DATA/SPLIT.features        features of all regions, image after image: (regions, width), float16
DATA/SPLIT.boxes           their boxes as fractions of the image, left, top, right, bottom: (regions, 4), float32
DATA/SPLIT.thumbnails      optional: a small picture of every image, (images, height, width, 3) bytes

The last four are little-endian numbers without headers; their shapes follow from captions.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...files import read_rows
from ..recorded import FolderRecord, RecordedFolder
from ..text.forms import TextForm

RECORD = "captions.json"
DICTIONARY = "dict.captions.txt"
TASK = "image_captioning"  # the fairseq task that reads such a folder
PARTS = {"features": "<f2", "boxes": "<f4", "regions": "<u2", "thumbnails": "u1"}  # types of the mapped files


@dataclass(frozen=True, kw_only=True)
class CaptionRecord(FolderRecord):
    """DATA/captions.json.

    captions, regions: numbers of captions and regions by split
    empty: number of captions without words, which were left out, by split
    width: number of features per region; words: size of the dictionary
    has_boxes: whether the boxes are known; otherwise all are 0
    thumbnail: height and width of the pictures, if there are any
    read: checksums of the input: of the captions file, and of the names, sizes and times of the feature files
    """

    file: ClassVar[str] = RECORD
    writer: ClassVar[str] = "fairseq-resid prepare-captions"

    captions: dict[str, int]
    regions: dict[str, int]
    width: int
    words: int
    has_boxes: bool
    empty: dict[str, int] = field(default_factory=dict)
    thumbnail: tuple[int, int] | None = None


@dataclass(frozen=True)
class Captions:
    """The images of a split in order: their ids, and the captions of each."""

    ids: list[str]
    texts: list[list[str]]

    def __len__(self) -> int:
        return len(self.ids)


class CaptionData(RecordedFolder[CaptionRecord]):
    """A data folder of captions: its path and its captions.json."""

    post_process = None  # captions consist of whole words
    form = TextForm("en")

    def inputs(self, subset: str) -> list[Path]:
        """Return the files that decoding and scoring `subset` depend on."""
        names = [f"{subset}.captions.tsv", f"{subset}.features", f"{subset}.boxes", f"ref/{subset}.tsv", DICTIONARY]
        return [self.path / name for name in names]

    def captions(self, subset: str) -> Captions:
        """Return the captions of a subset in the form that a model is trained on."""
        return read_captions(self.path, f"{subset}.captions.tsv", self.record.counts.get(subset))

    def reference(self, subset: str) -> Path:
        return self.path / f"ref/{subset}.tsv"

    def references(self, subset: str) -> Captions:
        """Return the original captions of a subset, the references for scoring."""
        return read_captions(self.path, f"ref/{subset}.tsv", self.record.counts.get(subset))

    def thumbnails(self, subset: str) -> np.ndarray | None:
        """Return the pictures (images, height, width, 3) of a subset, or None if there are none."""
        if self.record.thumbnail is None or f"{subset}.thumbnails" not in self.record.sizes:
            return None
        return mapped(self.path, subset, "thumbnails", (self.record.counts[subset], *self.record.thumbnail, 3))


@dataclass(frozen=True)
class Regions:
    """The regions of a split. features: (R, width); boxes: (R, 4); ends: (images,), the end of each image's regions."""

    features: np.ndarray
    boxes: np.ndarray
    ends: np.ndarray

    def of(self, image: int) -> np.ndarray:
        """Return the features and boxes of an image, (regions, width + 4) in fp32."""
        here = slice(self.ends[image - 1] if image else 0, self.ends[image])
        return np.concatenate([self.features[here].astype(np.float32), self.boxes[here]], axis=1)


def read_captions(data: Path, name: str, images: int | None) -> Captions:
    """Read a file of captions with one line for each of `images` images.

    Raises: ValueError naming the file, and the line or the number of images.
    """

    def row(fields: list[str]) -> list[str]:
        if len(fields) < 2:
            raise ValueError
        return fields

    file = data / name
    rows = read_rows(file, row, "an image id and one or more captions")
    if len(rows) != images:
        raise ValueError(f"{file}: {len(rows):,} images, but {RECORD} has {images or 0:,}; prepare the folder again")
    return Captions([fields[0] for fields in rows], [fields[1:] for fields in rows])


def mapped(data: Path, split: str, part: str, shape: Sequence[int]) -> np.ndarray:
    """Return the numbers of a file as a memory map, so that they are only read from disk when they are used.

    Raises: FileNotFoundError; ValueError naming the file if its size does not match the shape.
    """
    file, dtype = data / f"{split}.{part}", np.dtype(PARTS[part])
    size, expected = file.stat().st_size, int(np.prod(shape)) * dtype.itemsize
    if size != expected:
        raise ValueError(f"{file}: {size:,} bytes, but {RECORD} requires {expected:,}; prepare the folder again")
    return np.asarray(np.memmap(file, dtype, "r", shape=tuple(shape)))


def open_regions(data: Path, split: str, known: CaptionRecord) -> Regions:
    """Return the regions of a split.

    Raises: ValueError naming the file if it is missing or does not match captions.json.
    """
    if split not in known.counts:
        raise ValueError(f"{split}: no such subset; {data} has {', '.join(known.counts)}")
    total = known.regions.get(split, 0)
    counts = mapped(data, split, "regions", (known.counts[split],))
    if counts.min() < 1 or counts.sum(dtype=np.int64) != total:
        raise ValueError(f"{data / split}.regions: must have {total:,} regions, at least one for each image")
    features, boxes = (mapped(data, split, part, (total, width))
                       for part, width in (("features", known.width), ("boxes", 4)))  # fmt: skip
    return Regions(features, boxes, np.cumsum(counts, dtype=np.int64))
