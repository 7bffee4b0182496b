"""Region features of images, in the formats in which bottom-up features (Anderson et al. 2018) are distributed.

TSV     image_id, image_w, image_h, num_boxes, boxes, features; the last two are base64 of float32, (num_boxes, 4) and
        (num_boxes, width); a file, or a folder of such files
npz     a folder with a file for each image, ID.npz, with `feat` (n, width), and optionally `bbox` (n, 4), `image_w` and
        `image_h`
HDF5    a file with ID_features (n, width) for each image, and optionally ID_boxes (n, 4)

A box is (left, top, right, bottom), in pixels in TSV and npz files and as fractions of the image in HDF5 files.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...cli.frame import MissingPackage
from ...cli.progress import Progress
from ...files import reading

EDGE = 1.0  # number of pixels by which a box may extend beyond the image
LARGEST = float(np.finfo(np.float16).max)
# The released files are called NAME.tsv, NAME.tsv.0, NAME.tsv.1. Other names, such as NAME.tsv.bak, are not read.
TSV = re.compile(r".+\.tsv(\.\d+)?", re.DOTALL)
FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
Found = tuple[np.ndarray, np.ndarray | None]  # features (n, width), boxes (n, 4) as fractions of the image


def feature_files(path: Path) -> list[Path]:
    """Return the files of region features: a file, or the TSV or npz files of a folder.

    Raises: FileNotFoundError; ValueError if there are none.
    """
    if path.is_file():
        return [path]
    files = sorted(file for file in path.iterdir() if TSV.fullmatch(file.name)) or sorted(path.glob("*.npz"))
    if not files:
        raise ValueError(f"{path}: contains no region features; must contain .tsv files, or ID.npz for each image")
    return files


def state_of(path: Path) -> str:
    """Return the SHA-256 of the names, sizes and modification times of the feature files.

    The content is not hashed, because the files may be many GB in size.
    Raises: ValueError if there are none.
    """
    states = [(file.name, file.stat()) for file in feature_files(path)]
    lines = "".join(f"{name}\t{state.st_size}\t{state.st_mtime_ns}\n" for name, state in states)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


class FeatureSource(ABC):
    """A source of image features."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def __contains__(self, image: str) -> bool: ...

    @abstractmethod
    def has_boxes(self, image: str) -> bool:
        """Return whether the source has boxes for an image. Raises: see `find`."""

    @abstractmethod
    def find(self, image: str) -> Found:
        """Return the regions of an image. Raises: ValueError with the problem, but not the name of the image."""

    def regions(self, image: str, width: int | None) -> Found:
        """Return the regions of an image: their features (n, `width`) in float16, and boxes in float32 or None.

        Raises: ValueError naming the source, the image and the problem.
        """
        try:
            features, boxes = self.find(image)
            if features.ndim != 2 or not features.size:
                raise ValueError(f"features of shape {features.shape}: must be (regions, width)")
            if width not in (None, features.shape[1]):
                raise ValueError(f"{features.shape[1]:,} features per region: must be {width:,}")
            if not np.abs(features).max() <= LARGEST:  # also true for NaN
                raise ValueError(f"a feature is out of range or NaN; must be -{LARGEST:,.0f} to {LARGEST:,.0f}")
            if boxes is not None and boxes.shape != (len(features), 4):
                raise ValueError(f"boxes of shape {boxes.shape}: must be {(len(features), 4)}")
        except (ValueError, OSError) as error:
            raise ValueError(f"{self.path}: image {image}: {error}") from None
        return features.astype(np.float16), None if boxes is None else boxes.astype(np.float32)


def fractions(boxes: np.ndarray, width: float, height: float, edge: float = EDGE) -> np.ndarray:
    """Return boxes (left, top, right, bottom) as fractions of an image of this size.

    edge: how far a box may extend beyond the image
    Raises: ValueError naming the first box that is reversed or not inside the image.
    """
    scale = np.array([width, height, width, height])
    inside = (boxes >= -edge) & (boxes <= scale + edge)
    ordered = boxes[:, :2] <= boxes[:, 2:]
    wrong = np.flatnonzero(~(inside.all(axis=1) & ordered.all(axis=1)))
    if len(wrong):
        box = ", ".join(f"{value:g}" for value in boxes[wrong[0]])
        raise ValueError(f"box {wrong[0] + 1} ({box}): must be left, top, right, bottom within {width:g}x{height:g}")
    return np.clip(boxes / scale, 0, 1)


class TsvFeatures(FeatureSource):
    """Features in TSV files. If an image has several lines, as some do in the released files, the last one counts."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        super().__init__(path)
        self.files, self.lines = list(files), dict[str, tuple[int, int, int]]()
        with Progress(f"index {path}", sum(file.stat().st_size for file in files), "B") as progress:
            for number, file in enumerate(files):
                offset = 0
                with reading(file) as lines:
                    for place, line in enumerate(lines, start=1):
                        image = line.partition(b"\t")[0]
                        if image.isdigit():
                            self.lines[str(int(image))] = (number, offset, place)
                        elif place > 1 or image != b"image_id":
                            raise ValueError(f"{file}:{place}: {line[:20]!r}: must start with a numeric image_id")
                        offset += len(line)
                        progress.advance(len(line))
        self.opened = [file.open("rb") for file in self.files]

    def __contains__(self, image: str) -> bool:
        return image in self.lines

    def has_boxes(self, image: str) -> bool:
        return True

    def find(self, image: str) -> Found:
        number, offset, place = self.lines[image]
        self.opened[number].seek(offset)
        line = self.opened[number].readline().rstrip(b"\r\n")
        try:
            _, width, height, count, *coded = line.split(b"\t")
            boxes, features = (
                np.frombuffer(base64.b64decode(part, validate=True), "<f4").reshape(int(count), -1) for part in coded
            )
        except ValueError as error:
            raise ValueError(
                f"{self.files[number].name}:{place}: {error}: must be {', '.join(FIELDS)}; is the file complete?"
            ) from None
        return features, fractions(boxes, float(width), float(height))


class NpzFeatures(FeatureSource):
    """Features in one npz file for each image."""

    def __contains__(self, image: str) -> bool:
        return (self.path / f"{image}.npz").is_file()

    def has_boxes(self, image: str) -> bool:
        with self._open(image) as arrays:
            return "bbox" in arrays

    @contextmanager
    def _open(self, image: str) -> Iterator[Any]:
        try:
            with np.load(self.path / f"{image}.npz") as arrays:
                yield arrays
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise ValueError(f"{image}.npz: damaged: {error}") from None

    def find(self, image: str) -> Found:
        with self._open(image) as arrays:
            if "bbox" not in arrays:
                return arrays["feat"], None
            size = (float(arrays[name].item()) for name in ("image_w", "image_h"))
            return arrays["feat"], fractions(arrays["bbox"], *size)


class Hdf5Features(FeatureSource):
    """Features in an HDF5 file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            import h5py
        except ModuleNotFoundError:
            raise MissingPackage(
                f'{path}: reading HDF5 requires h5py; run pip install ".[fairseq,captioning]"'
            ) from None
        try:
            self.opened: Any = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path}: damaged: {error}") from None

    def __contains__(self, image: str) -> bool:
        return f"{image}_features" in self.opened

    def has_boxes(self, image: str) -> bool:
        return f"{image}_boxes" in self.opened

    def find(self, image: str) -> Found:
        boxes = self.opened[f"{image}_boxes"][()] if self.has_boxes(image) else None
        return self.opened[f"{image}_features"][()], None if boxes is None else fractions(boxes, 1, 1, 1e-3)


def open_features(path: Path) -> FeatureSource:
    """Open region features in any of the three formats.

    Raises: ValueError naming the file that is missing, damaged or in another format; MissingPackage; OSError.
    """
    files = feature_files(path)
    if path.is_dir():
        return NpzFeatures(path) if files[0].suffix == ".npz" else TsvFeatures(path, files)
    with path.open("rb") as file:
        is_hdf5 = file.read(8) == b"\x89HDF\r\n\x1a\n"
    return Hdf5Features(path) if is_hdf5 else TsvFeatures(path, files)
