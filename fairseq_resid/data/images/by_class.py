"""Image files in a folder for each class: FOLDER/train/CLASS/FILE and FOLDER/test/CLASS/FILE.

The images of a part are in the order of their classes' labels, and within a class of the names of their files.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ...cli.workers import ordered
from ...files import read_bytes
from .manifest import PARTS

# Formats of single images whose decoders run no other program; a file's content says which it is, not its name.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Pillow's pixel formats of 8 bits a channel, or 1. From more bits it would cut the bright ones off.
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
CHUNK_IMAGES = 250
CHUNK_BYTES = 1 << 23

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class ImageFile:
    """A file on disk, and the name by which messages call it."""

    path: Path
    name: str


@dataclass(frozen=True)
class ImageFolder:
    """The image files of a folder by class.

    classes: in the order of the labels; files, labels: of each part, one label (N,) a file
    sha256: of the names and sizes of all files
    """

    classes: tuple[str, ...]
    files: dict[str, list[ImageFile]]
    labels: dict[str, np.ndarray]
    sha256: str

    def shape(self) -> Shape:
        """Return the shape of the first training image.

        Raises: ValueError naming the file if it cannot be read.
        """
        return _decode(self.files["train"][0]).shape  # type: ignore[return-value]

    def blocks(self, part: str, shape: Shape, workers: int) -> Generator[np.ndarray, None, None]:
        """Yield the pixels of a part's images, decoded by so many processes, in blocks (n, C, H, W) of bytes.

        Raises: ValueError naming the file that cannot be read, or is of another size; ChildProcessError.
        """
        files = self.files[part]
        count = max(1, min(CHUNK_IMAGES, CHUNK_BYTES // int(np.prod(shape))))
        chunks = (files[start : start + count] for start in range(0, len(files), count))
        return ordered(partial(_decode_all, shape=shape), chunks, workers)


def find(root: Path, name: str, known: Sequence[str] = ()) -> ImageFolder:
    """List the images of a folder; none of them is opened.

    name: how messages call the folder; known: the classes that it must have; none: whatever `train` has, by name
    Raises: ValueError naming the file or folder that is missing, empty, or not where one of its kind can be.
    """
    classes = tuple(known)
    files: dict[str, list[ImageFile]] = {}
    labels: dict[str, np.ndarray] = {}
    digest = hashlib.sha256()
    inside = root.resolve()
    if (root / "valid").exists():
        raise ValueError(f"{name}/valid: the validation set is taken from the training images (--valid N); move these into {name}/train")
    for part in PARTS:
        if not (root / part).is_dir():
            raise ValueError(f"{name}: folder {part}/ is missing; train/CLASS/IMAGE and test/CLASS/IMAGE are needed")
        folders = {entry.name: entry for entry in _entries(root / part, f"{name}/{part}", inside)}
        for entry in folders.values():
            if not entry.is_dir():
                raise ValueError(f"{name}/{part}/{entry.name}: not a folder; {name}/{part} has one for each class")
        classes = classes or tuple(folders)
        if unknown := [folder for folder in folders if folder not in classes]:
            those = f"of {name}/train" if not known else f"{', '.join(classes[:10])}{', ...' if classes[10:] else ''}"
            raise ValueError(f"{name}/{part}/{unknown[0]}: unknown class; the classes are those {those}")
        if known and (missing := [label for label in classes if label not in folders]):
            raise ValueError(f"{name}/{part}: there is no folder for the class {missing[0]}")
        files[part], counts = [], []
        for label in classes:
            found = _images(folders[label], f"{name}/{part}/{label}", inside) if label in folders else []
            counts.append(len(found))
            files[part] += found
        for file in files[part]:
            digest.update(os.fsencode(f"{file.name.removeprefix(name)}\t{file.path.stat().st_size}\n"))
        labels[part] = np.repeat(np.arange(len(classes)), counts)
        if not files[part]:
            raise ValueError(f"{name}/{part}: contains no images")
    return ImageFolder(classes, files, labels, digest.hexdigest())


def _images(folder: os.DirEntry[str], name: str, inside: Path) -> list[ImageFile]:
    """Return the image files of a class."""
    found = []
    for entry in _entries(Path(folder.path), name, inside):
        if not entry.is_file():
            raise ValueError(f"{name}/{entry.name}: not a file; the folder of a class may contain only images")
        found.append(ImageFile(Path(entry.path), f"{name}/{entry.name}"))
    if not found:
        raise ValueError(f"{name}: contains no images")
    return found


def _entries(folder: Path, name: str, inside: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds, by name.

    Raises: ValueError naming a link that leads out of the folder `inside`.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(inside):
            raise ValueError(f"{name}/{entry.name}: links outside the folder are not followed")
    return entries


def _decode_all(files: Sequence[ImageFile], shape: Shape) -> np.ndarray:
    """Return the pixels of images of one shape: (n, C, H, W) bytes."""
    block = np.empty((len(files), *shape), np.uint8)
    for row, file in zip(block, files, strict=True):
        row[:] = _decode(file, shape)
    return block


def _decode(file: ImageFile, shape: Shape | None = None) -> np.ndarray:
    """Return the pixels of an image in RGB: (C, H, W) bytes. Transparency and the camera's orientation are left out.

    Raises: ValueError naming the file if it is no whole image, or not of this shape; OSError of the disk.
    """
    raw = read_bytes(file.path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # So large that it must be meant to fill the memory: Pillow warns, and refuses twice that.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
                width, height = image.size
                if shape is not None and (height, width) != shape[1:]:
                    found = f"{width}x{height} pixels, and {shape[2]}x{shape[1]} are expected"
                elif image.mode not in MODES:
                    found = f"more than 8 bits a channel ({image.mode})"
                else:
                    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except UnidentifiedImageError:
        found = f"no image of a format that is read ({', '.join(FORMATS)})"
    except Exception as error:  # Pillow's decoders raise errors of any kind, also on damage that they do not expect
        found = f"no image that can be read: {str(error) or type(error).__name__}"
    raise ValueError(f"{file.name}: {found}")
