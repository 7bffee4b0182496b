"""The data folder of an image corpus: DATA/images.json, and one memory-mapped file of images per split.

DATA/SPLIT.npy is a NumPy array of records (label, pixels): the class index from 0, and (C, H, W) bytes. It contains no
pickled data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ... import records
from ...files import MOST_COUNT, inside
from ..sizes import check_names, check_sizes

RECORD = "images.json"
TASK = "image_classification"  # the fairseq task that reads such a folder
WRITER = "fairseq-resid prepare-images"
SPLITS = ("train", "valid", "test")
MOST_VALUES = 1 << 22  # values per image, such as 3 x 1,182 x 1,182
MOST_CLASSES = 1 << 16  # labels are stored in 16 bits


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """DATA/images.json.

    classes: class names in the order of the labels; shape: channels, height, width; counts: images per split
    mean, deviation: per channel over the training split, for pixels from 0 to 1
    source: "release" for images from the binary archive, "folder" for image files by class
    read: SHA-256 of the input, by name: an archive, or the names and sizes of the files in a folder
    differences: differences from the corpus of this name; unverified: files that were not verified by a checksum
    asked: the settings that the folder was made with; tools: versions of the libraries that decode image files
    sizes, checksums: bytes and SHA-256 of every other file of the folder
    """

    name: str
    classes: list[str]
    shape: tuple[int, int, int]
    counts: dict[str, int]
    mean: list[float]
    deviation: list[float]
    source: str
    read: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names([*self.sizes, *self.checksums])
        # The shape and the number of classes determine the sizes of a model's first and last layers.
        if min(self.shape) < 1 or math.prod(self.shape) > MOST_VALUES:
            raise ValueError(f"shape: {list(self.shape)}: must be positive, with a product of at most {MOST_VALUES:,}")
        if not 1 <= len(self.classes) <= MOST_CLASSES:
            raise ValueError(f"classes: {len(self.classes):,}: must be 1 to {MOST_CLASSES:,}")
        for split, count in self.counts.items():
            if not 0 <= count <= MOST_COUNT:
                raise ValueError(f"counts: {split}: {count}: must be 0 to {MOST_COUNT:g}")


def dtype(shape: tuple[int, int, int]) -> np.dtype[Any]:
    """Return the NumPy type of one image on disk, including its label."""
    return np.dtype([("label", "<u2"), ("pixels", "u1", shape)])


def begin(file: IO[bytes], shape: tuple[int, int, int], count: int) -> None:
    """Write the header of SPLIT.npy. The caller must then write the records of `count` images, as bytes."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype(shape)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


@dataclass(frozen=True)
class ImageData:
    """A data folder of images: its path and its images.json."""

    path: Path
    record: ImageRecord

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def differences(self) -> list[str]:
        return self.record.differences

    @property
    def unverified(self) -> list[str]:
        return self.record.unverified

    @property
    def preparation(self) -> dict[str, Any]:
        return self.record.asked


def read(data: Path) -> ImageRecord:
    """Read DATA/images.json.

    Raises: ValueError naming the folder or file and the problem; OSError.
    """
    if not data.is_dir():
        raise ValueError(f"{data}: no such data folder")
    return records.read(inside(data, RECORD), ImageRecord, WRITER)


def check(data: Path, verify: bool = False) -> ImageRecord:
    """Compare the file sizes in a data folder with those in images.json.

    verify: compare checksums too

    Raises: ValueError naming every file that is missing or damaged; the errors of `read`.
    """
    known = read(data)
    check_sizes(data, RECORD, known.sizes, known.checksums if verify else {})
    return known


def open_split(data: Path, split: str, known: ImageRecord) -> np.memmap[Any, Any]:
    """Return the images of a split as a memory map, so that they are only read from disk when they are used.

    Raises: ValueError naming the file if it is missing, does not have the type and length recorded in images.json, or
    contains a label without a class.
    """
    file = data / f"{split}.npy"
    if not file.is_file():
        raise ValueError(f"{file}: no such file; {data} has {', '.join(known.counts)}")
    try:
        # np.load would also read other kinds of files.
        images: np.memmap[Any, Any] = np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # NumPy parses the header as Python, which can raise any error
        raise ValueError(f"{file}: damaged: {' '.join(str(error).split())}") from None
    if images.dtype != dtype(known.shape) or images.shape != (known.counts.get(split),):
        raise ValueError(
            f"{file}: not the {split} split of {data / RECORD}: shape {images.shape} or image type differs"
        )
    classes = len(known.classes)
    if len(images) and (most := int(images["label"].max())) >= classes:
        raise ValueError(f"{file}: label {most}: must be 0 to {classes - 1}, for the {classes:,} classes of {RECORD}")
    return images
