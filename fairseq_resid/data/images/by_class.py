"""Image files in one folder per class: FOLDER/train/CLASS/FILE and FOLDER/test/CLASS/FILE.

The images of each part are sorted by class label, and by file name within a class.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ...cli.workers import ordered
from .manifest import PARTS

# Image formats whose decoders run no other program. The format is detected from the content, not the file name.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Pillow modes with 8 bits or 1 bit per channel. Converting from more than 8 bits would clip bright pixels.
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
CHUNK_IMAGES = 250
CHUNK_BYTES = 1 << 23

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class ImageFolder:
    """The image files of a folder with one subfolder per class.

    name: the folder's name in messages; classes: in the order of the labels
    files: their paths in the folder, by part; labels: one per file (N,), by part
    """

    root: Path
    name: str
    classes: tuple[str, ...]
    files: dict[str, list[str]]
    labels: dict[str, np.ndarray]

    def sha256(self, described: Callable[[Path], object]) -> str:
        """Return the SHA-256 of the names of all files, each with a description of the file."""
        digest = hashlib.sha256()
        for file in (file for part in PARTS for file in self.files[part]):
            digest.update(os.fsencode(f"/{file}\t{described(self.root / file)}\n"))
        return digest.hexdigest()

    def shape(self) -> Shape:
        """Return the shape of the first training image.

        Raises: ValueError naming the file if it cannot be read.
        """
        return _decode(self.root, self.name, self.files["train"][0]).shape  # type: ignore[return-value]

    def blocks(self, part: str, shape: Shape, workers: int) -> Generator[np.ndarray, None, None]:
        """Yield the pixels of the images of one part in blocks (n, C, H, W) of bytes, decoded by `workers` processes.

        Raises: ValueError naming a file that cannot be read or has a different size; ChildProcessError.
        """
        files = self.files[part]
        count = max(1, min(CHUNK_IMAGES, CHUNK_BYTES // int(np.prod(shape))))
        chunks = (files[start : start + count] for start in range(0, len(files), count))
        return ordered(partial(_decode_all, self.root, self.name, shape), chunks, workers)


def find(root: Path, name: str, known: Sequence[str] = ()) -> ImageFolder:
    """List the images of a folder without opening them.

    name: the folder's name in messages; known: the required classes; if empty, the subfolders of `train`, by name
    Raises: ValueError naming the file or folder that is missing, empty or misplaced.
    """
    classes = tuple(known)
    files: dict[str, list[str]] = {}
    labels: dict[str, np.ndarray] = {}
    if (root / "valid").exists():
        raise ValueError(
            f"{name}/valid: the validation set is taken from the training images (--valid N); "
            f"move these images to {name}/train"
        )
    for part in PARTS:
        if not (root / part).is_dir():
            raise ValueError(f"{name}: folder {part}/ is missing; must contain train/CLASS/IMAGE and test/CLASS/IMAGE")
        folders = sorted(os.listdir(root / part))
        classes = classes or tuple(folders)
        if unknown := [folder for folder in folders if folder not in classes]:
            shown = ", ".join([*classes[:10], *(["..."] if classes[10:] else [])])
            raise ValueError(f"{name}/{part}/{unknown[0]}: unknown class; the classes are {shown}")
        found = [sorted(os.listdir(root / part / label)) if label in folders else [] for label in classes]
        files[part] = [f"{part}/{label}/{file}" for label, some in zip(classes, found, strict=True) for file in some]
        labels[part] = np.repeat(np.arange(len(classes)), [len(some) for some in found])
        if not files[part]:
            raise ValueError(f"{name}/{part}: contains no images")
    return ImageFolder(root, name, classes, files, labels)


def _decode_all(root: Path, name: str, shape: Shape, files: Sequence[str]) -> np.ndarray:
    """Return the pixels of images of one shape: (n, C, H, W) bytes."""
    block = np.empty((len(files), *shape), np.uint8)
    for row, file in zip(block, files, strict=True):
        row[:] = _decode(root, name, file, shape)
    return block


def _decode(root: Path, name: str, file: str, shape: Shape | None = None) -> np.ndarray:
    """Return the pixels of an image in RGB: (C, H, W) bytes. Transparency and EXIF orientation are ignored.

    Raises: ValueError naming the file if it is not a complete image or has a different shape; OSError.
    """
    raw = (root / file).read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
                width, height = image.size
                if shape is not None and (height, width) != shape[1:]:
                    found = f"{width}x{height} pixels; expected {shape[2]}x{shape[1]}"
                elif image.mode not in MODES:
                    found = f"more than 8 bits per channel ({image.mode}); convert it to 8 bits"
                else:
                    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except UnidentifiedImageError:
        found = f"not an image in a supported format ({', '.join(FORMATS)})"
    except Exception as error:  # Pillow's decoders raise any kind of error on damaged files
        found = f"cannot decode this image: {str(error) or type(error).__name__}"
    raise ValueError(f"{name}/{file}: {found}")
