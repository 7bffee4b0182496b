"""Where the images of a corpus come from: the archive of the release, or image files by class."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...files import open_any_size, read_bytes
from .. import extract
from ..fetch import Fingerprint, describe, fetch, problem, usable
from . import by_class
from .by_class import Shape
from .manifest import PARTS, ImageManifest

BLOCK_IMAGES = 1000


@dataclass(frozen=True)
class ImageSourceOptions:
    """Where images may come from: --raw, else --mirror, else the address of the release."""

    raw: tuple[Path, ...]
    mirror: str | None
    downloads: Path
    allow_other: bool


@dataclass(frozen=True)
class Part:
    """The images of one part: the label of each (N,), and their pixels in blocks (n, C, H, W) of bytes, in order."""

    labels: np.ndarray
    blocks: Callable[[], Generator[np.ndarray, None, None]]


@dataclass(frozen=True)
class Images:
    """All images of a source; classes: in the order of the labels; shape: channels, height, width."""

    classes: tuple[str, ...]
    shape: Shape
    parts: dict[str, Part]


class Source(ABC):
    """One place that has the images.

    kind: as images.json says it; read: SHA-256 of what is read, by name
    by_class: whether the images are sorted by class, so that the last of every class are held out, and not the last
    differences: how it is not the release; unverified: files that no checksum vouches for
    """

    kind: str
    by_class: bool
    read: dict[str, str]
    differences: Sequence[str] = ()
    unverified: Sequence[str] = ()

    @abstractmethod
    def open(self, work: Path, workers: int) -> Images:
        """Return the images; WORK is an empty folder for what must be unpacked.

        Raises: ValueError naming what is damaged or missing; OSError.
        """


class Release(Source):
    """The binary archive: each of its members is images of one size, label bytes before the pixels."""

    kind = "release"
    by_class = False

    def __init__(self, manifest: ImageManifest, archive: Path, known: Fingerprint) -> None:
        self.manifest, self.archive, self.known = manifest, archive, known
        self.read = {archive.name: known.sha256}
        wrong = problem(manifest.file, known) if manifest.file else None
        self.differences = [f"{archive.name}: {wrong}"] if wrong else []

    def open(self, work: Path, workers: int) -> Images:
        manifest, shape = self.manifest, self.manifest.shape
        assert shape is not None
        members = [member for part in PARTS for member in manifest.members[part]]
        files = {member: work / str(number) for number, member in enumerate([*members, manifest.names])}
        with usable(self.archive, self.known):
            extract.extract(self.archive, files)
        named = tuple(read_bytes(files[manifest.names]).decode("utf-8", "replace").split())
        if named != manifest.classes:
            raise ValueError(f"{self.archive}: {manifest.names} does not name the classes of {manifest.name}")
        layout = np.dtype([("labels", "u1", (len(manifest.labels),)), ("pixels", "u1", shape)])
        parts = {}
        for part in PARTS:
            images = [self._member(member, files[member], layout) for member in manifest.members[part]]
            labels = np.concatenate([some["labels"][:, manifest.labels.index("class")] for some in images])
            parts[part] = Part(labels.astype(np.int64), partial(_pixels, images))
        return Images(manifest.classes, shape, parts)

    def _member(self, member: str, file: Path, layout: np.dtype[Any]) -> np.ndarray:
        """Return the images of one member.

        Raises: ValueError naming the archive, the member, and the image if there is no such class.
        """
        size, classes = file.stat().st_size, len(self.manifest.classes)
        if size == 0 or size % layout.itemsize:
            raise ValueError(
                f"{self.archive}: {member} has {size:,} bytes, and images of {layout.itemsize:,} bytes are expected; "
                "is it whole?"
            )
        with open_any_size(file) as opened:
            images = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), layout)
        labels = images["labels"][:, self.manifest.labels.index("class")]
        if len(wrong := np.flatnonzero(labels >= classes)):
            raise ValueError(
                f"{self.archive}: {member}: image {wrong[0] + 1:,} has the label {labels[wrong[0]]}, and the labels of "
                f"{self.manifest.name} are 0 to {classes - 1}"
            )
        return images


def _pixels(images: list[np.ndarray]) -> Generator[np.ndarray, None, None]:
    for some in images:
        for start in range(0, len(some), BLOCK_IMAGES):
            yield some["pixels"][start : start + BLOCK_IMAGES]


class Files(Source):
    """Image files by class: a folder, or an archive of one."""

    kind = "folder"
    by_class = True

    def __init__(self, manifest: ImageManifest, raw: Path) -> None:
        self.manifest, self.raw = manifest, raw
        self.folder = by_class.find(raw, str(raw), manifest.classes) if raw.is_dir() else None
        self.read = {raw.resolve().name: self.folder.sha256 if self.folder else describe(raw).sha256}
        if manifest.file is not None:  # the user's own images promise nothing
            self.differences = ["read from image files, not from the release"]
            self.unverified = list(PARTS)

    def open(self, work: Path, workers: int) -> Images:
        folder = self.folder
        if folder is None:
            extract.unpack(self.raw, work)
            folder = by_class.find(work, str(self.raw), self.manifest.classes)
        shape = self.manifest.shape or folder.shape()
        parts = {part: Part(folder.labels[part], partial(folder.blocks, part, shape, workers)) for part in PARTS}
        return Images(folder.classes, shape, parts)


def on_disk(manifest: ImageManifest, chosen: ImageSourceOptions) -> Source:
    """Return the first source that --raw names.

    Raises: ValueError naming what is in none of the folders, or is not the released file.
    """
    file = manifest.file
    for raw in chosen.raw:
        if file is not None and (raw / file.name).is_file():
            return _release(manifest, raw / file.name, describe(raw / file.name), chosen)
        if raw.is_file():
            known = describe(raw)
            if file is not None and (raw.name == file.name or not problem(file, known)):
                return _release(manifest, raw, known, chosen)
            if extract.is_archive(raw.name):
                return Files(manifest, raw)
        if (raw / "train").is_dir():
            return Files(manifest, raw)
    wanted = [file.name] if file is not None else []
    wanted += ["a folder with train/CLASS/IMAGE and test/CLASS/IMAGE", "an archive of such a folder"]
    raise ValueError(f"--raw {', '.join(map(str, chosen.raw))}: images not found: none of {', '.join(wanted)}")


def downloaded(manifest: ImageManifest, chosen: ImageSourceOptions) -> Source:
    """Return the archive of the release; download it unless it is here.

    Raises: FetchError; OSError.
    """
    assert manifest.file is not None
    known = fetch(manifest.file, chosen.downloads, chosen.mirror, chosen.allow_other)
    return Release(manifest, chosen.downloads / manifest.file.name, known)


def _release(manifest: ImageManifest, archive: Path, known: Fingerprint, chosen: ImageSourceOptions) -> Release:
    release = Release(manifest, archive, known)
    if release.differences and not chosen.allow_other:
        raise ValueError(
            f"not the released file (--allow-other-data accepts it): {archive.parent}/{release.differences[0]}"
        )
    return release
