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
import binascii
import hashlib
import re
import zipfile
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

    Raises: ValueError if there are none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path}: no such file or folder")
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
        except ValueError as error:
            raise ValueError(f"{self.path}: image {image}: {error}") from None
        return features.astype(np.float16), None if boxes is None else boxes.astype(np.float32)


def fractions(boxes: np.ndarray, width: float, height: float, edge: float = EDGE) -> np.ndarray:
    """Return boxes (left, top, right, bottom) as fractions of an image of this size.

    edge: how far a box may extend beyond the image
    Raises: ValueError naming the first box that is reversed or not inside the image, or an impossible size.
    """
    if not (0 < width < 1e6 and 0 < height < 1e6):
        raise ValueError(f"an image of {width:g}x{height:g} pixels: each side must be above 0 and below 1,000,000")
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
                            self.lines[str(int(image[:20]))] = (number, offset, place)
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
        fields = self.opened[number].readline().rstrip(b"\r\n").split(b"\t")
        where = f"{self.files[number].name}:{place}"
        if len(fields) != len(FIELDS):
            raise ValueError(f"{where}: {len(fields)} fields: must be {', '.join(FIELDS)}; is the file complete?")
        try:
            width, height, count = float(fields[1]), float(fields[2]), int(fields[3])
            boxes, features = (base64.b64decode(field, validate=True) for field in fields[4:])
        except (ValueError, binascii.Error):
            raise ValueError(
                f"{where}: image_w, image_h and num_boxes must be numbers, and boxes and features base64; is the file "
                "complete?"
            ) from None
        if count < 1 or len(boxes) != 16 * count or not features or len(features) % (4 * count):
            raise ValueError(
                f"{where}: {count} regions with {len(boxes):,} bytes of boxes and {len(features):,} of features: must "
                "be one or more regions with 16 bytes of boxes each and equally many features; is the file "
                "complete?"
            )
        return (
            np.frombuffer(features, "<f4").reshape(count, -1),
            fractions(np.frombuffer(boxes, "<f4").reshape(count, 4), width, height),
        )


class NpzFeatures(FeatureSource):
    """Features in one npz file for each image."""

    def __contains__(self, image: str) -> bool:
        return (self.path / f"{image}.npz").is_file()

    def has_boxes(self, image: str) -> bool:
        with self._open(image) as archive:
            return "bbox.npy" in archive.NameToInfo

    @contextmanager
    def _open(self, image: str) -> Iterator[zipfile.ZipFile]:
        try:
            with (self.path / f"{image}.npz").open("rb") as file, zipfile.ZipFile(file) as archive:
                yield archive
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError) as error:
            raise ValueError(f"damaged: {' '.join(str(error).split())}") from None

    def find(self, image: str) -> Found:
        wanted = ("feat", "bbox", "image_w", "image_h")
        with self._open(image) as archive:
            found = {name: _array(archive, f"{name}.npy") for name in wanted if f"{name}.npy" in archive.NameToInfo}
        if "feat" not in found:
            raise ValueError("has no array `feat`")
        if "bbox" not in found or found["bbox"].ndim != 2 or found["bbox"].shape[1] != 4:
            return found["feat"], found.get("bbox")
        if not all(name in found and found[name].size == 1 for name in wanted[2:]):
            raise ValueError("has `bbox`, but `image_w` or `image_h` is missing or not one number")
        return found["feat"], fractions(found["bbox"], *(float(found[name].item()) for name in wanted[2:]))


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return an array of numbers from an npz file."""
    try:
        with archive.open(name) as member:
            array = np.lib.format.read_array(member, allow_pickle=False)
    except Exception as error:  # NumPy parses the header as Python, which can raise any error
        raise ValueError(f"{name}: damaged: {' '.join(str(error).split())[:200]}") from None
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: type {array.dtype}: must be numbers")
    return array.astype(np.float64 if array.dtype.kind in "iu" else array.dtype)


class Hdf5Features(FeatureSource):
    """Features in an HDF5 file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            import h5py
        except ModuleNotFoundError:
            raise MissingPackage(
                f'{path}: reading HDF5 requires h5py; run pip install "fairseq_resid[captioning]"'
            ) from None
        self.h5py = h5py
        try:
            self.opened: Any = h5py.File(path.open("rb"), "r")
        except OSError as error:
            raise ValueError(f"{path}: damaged: {' '.join(str(error).split())[:200]}") from None

    def __contains__(self, image: str) -> bool:
        return f"{image}_features" in self.opened

    def has_boxes(self, image: str) -> bool:
        return f"{image}_boxes" in self.opened

    def find(self, image: str) -> Found:
        try:
            boxes = self._dataset(f"{image}_boxes") if self.has_boxes(image) else None
            features = self._dataset(f"{image}_features")
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            raise ValueError(f"damaged: {' '.join(str(error).split())[:200]}") from None
        assert features is not None
        has_four = boxes is not None and boxes.shape[1:] == (4,)
        return features, fractions(boxes, 1, 1, 1e-3) if has_four else boxes  # type: ignore[arg-type]

    def _dataset(self, name: str) -> np.ndarray:
        dataset = self.opened.get(name)
        if not isinstance(dataset, self.h5py.Dataset) or dataset.dtype.kind not in "fiu":
            raise ValueError(f"{name}: must be a dataset of numbers")
        values: np.ndarray = dataset[()]
        return values


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
