"""The data folder of an image corpus: DATA/images.json, and one memory-mapped file of images per split.

DATA/SPLIT.npy is a NumPy array of records (label, pixels): the class index from 0, and (C, H, W) bytes. It contains no
pickled data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from ..recorded import FolderRecord, RecordedFolder

RECORD = "images.json"
TASK = "image_classification"  # the fairseq task that reads such a folder


@dataclass(frozen=True, kw_only=True)
class ImageRecord(FolderRecord):
    """DATA/images.json.

    classes: class names in the order of the labels; shape: channels, height, width
    mean, deviation: per channel over the training split, for pixels from 0 to 1
    source: "release" for images from the binary archive, "folder" for image files by class
    read: checksums of the input: of an archive, or of the names and contents of the files in a folder
    tools: versions of the libraries that decode image files
    """

    file: ClassVar[str] = RECORD
    writer: ClassVar[str] = "fairseq-resid prepare-images"

    classes: list[str]
    shape: tuple[int, int, int]
    mean: list[float]
    deviation: list[float]
    source: str
    tools: dict[str, str] = field(default_factory=dict)


def dtype(shape: tuple[int, int, int]) -> np.dtype[Any]:
    """Return the NumPy type of one image on disk, including its label."""
    return np.dtype([("label", "<u2"), ("pixels", "u1", shape)])


def begin(file: IO[bytes], shape: tuple[int, int, int], count: int) -> None:
    """Write the header of SPLIT.npy. The caller must then write the records of `count` images, as bytes."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype(shape)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


class ImageData(RecordedFolder[ImageRecord]):
    """A data folder of images: its path and its images.json."""


def open_split(data: Path, split: str, known: ImageRecord) -> np.memmap[Any, Any]:
    """Return the images of a split as a memory map, so that they are only read from disk when they are used.

    Raises: FileNotFoundError; ValueError naming the file if it is damaged, or does not have the type and length
    recorded in images.json.
    """
    file = data / f"{split}.npy"
    try:
        images: np.memmap[Any, Any] = np.lib.format.open_memmap(file, mode="r")
    except ValueError as error:
        raise ValueError(f"{file}: damaged: {error}") from None
    if images.dtype != dtype(known.shape) or images.shape != (known.counts.get(split),):
        raise ValueError(
            f"{file}: not the {split} split of {data / RECORD}: shape {images.shape} or image type differs"
        )
    return images
