"""Sources of the images of a corpus: the archive of the release, or image files by class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...files import sha256
from .. import extract
from ..fetch import Fingerprint, describe, fetch, problem, usable
from ..preparing import Options
from . import by_class
from .by_class import Shape
from .manifest import PARTS, ImageManifest

BLOCK_IMAGES = 1000


@dataclass(frozen=True)
class Part:
    """The images of one part: their labels (N,), and their pixels in the same order in blocks (n, C, H, W) of bytes."""

    labels: np.ndarray
    blocks: Callable[[], Generator[np.ndarray, None, None]]


@dataclass(frozen=True)
class Images:
    """All images of a source; classes: in the order of the labels; shape: channels, height, width."""

    classes: tuple[str, ...]
    shape: Shape
    parts: dict[str, Part]


class Source(ABC):
    """One source of the images.

    kind: `source` in images.json, "release" or "folder"; read: SHA-256 of the input, by name
    differences: differences from the release; unverified: files that were not verified by a checksum
    """

    kind: str
    read: dict[str, str]
    differences: Sequence[str] = ()
    unverified: Sequence[str] = ()

    def was_read(self, recorded: dict[str, str]) -> bool:
        """Return whether `read` in images.json, which another call wrote, is of this source."""
        return {*recorded.values()} == {*self.read.values()}

    @abstractmethod
    def open(self, work: Path, workers: int) -> Images:
        """Return the images; WORK is an empty folder for unpacked files.

        Raises: ValueError naming the damaged or missing file; OSError.
        """


class Release(Source):
    """The binary archive: each member contains images of one size, with label bytes before the pixels."""

    kind = "release"

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
        named = tuple(files[manifest.names].read_bytes().decode("utf-8", "replace").split())
        if named != manifest.classes:
            raise ValueError(f"{self.archive}: {manifest.names} does not list the classes of {manifest.name}")
        layout = np.dtype([("labels", "u1", (len(manifest.labels),)), ("pixels", "u1", shape)])
        parts = {}
        for part in PARTS:
            images = [self._member(member, files[member], layout) for member in manifest.members[part]]
            labels = np.concatenate([some["labels"][:, manifest.labels.index("class")] for some in images])
            parts[part] = Part(labels.astype(np.int64), partial(_pixels, images))
        return Images(manifest.classes, shape, parts)

    def _member(self, member: str, file: Path, layout: np.dtype[Any]) -> np.ndarray:
        """Return the images of one member.

        Raises: ValueError naming the archive and the member if it is incomplete.
        """
        size = file.stat().st_size
        if size == 0 or size % layout.itemsize:
            raise ValueError(
                f"{self.archive}: {member} has {size:,} bytes; expected images of {layout.itemsize:,} bytes each; "
                "is the file complete?"
            )
        return np.memmap(file, layout, "r")


def _pixels(images: list[np.ndarray]) -> Generator[np.ndarray, None, None]:
    for some in images:
        for start in range(0, len(some), BLOCK_IMAGES):
            yield some["pixels"][start : start + BLOCK_IMAGES]


class Files(Source):
    """Image files by class, in a folder or in an archive of such a folder."""

    kind = "folder"

    def __init__(self, manifest: ImageManifest, raw: Path) -> None:
        self.manifest, self.raw = manifest, raw
        self.folder = by_class.find(raw, str(raw), manifest.classes) if raw.is_dir() else None
        self.read = {raw.resolve().name: self.folder.sha256(sha256) if self.folder else describe(raw).sha256}
        if manifest.file is not None:  # the user's own images have no release to compare with
            self.differences = ["read from image files, not from the release"]
            self.unverified = list(PARTS)

    def was_read(self, recorded: dict[str, str]) -> bool:
        if super().was_read(recorded):
            return True
        # Version 0.6 recorded the sizes of the files, not their content.
        return self.folder is not None and [*recorded.values()] == [
            self.folder.sha256(lambda path: path.stat().st_size)
        ]

    def open(self, work: Path, workers: int) -> Images:
        folder = self.folder
        if folder is None:
            extract.unpack(self.raw, work)
            folder = by_class.find(work, str(self.raw), self.manifest.classes)
        shape = self.manifest.shape or folder.shape()
        parts = {part: Part(folder.labels[part], partial(folder.blocks, part, shape, workers)) for part in PARTS}
        return Images(folder.classes, shape, parts)


def on_disk(manifest: ImageManifest, options: Options) -> Source:
    """Return the first source found in the --raw paths.

    Raises: ValueError naming the files that are missing, or a file that is not the released one.
    """
    released = [manifest.file.name] if manifest.file is not None else []
    for raw in options.raw:
        for archive in (path for name in released for path in (raw / name, raw) if path.is_file()):
            release = Release(manifest, archive, describe(archive))
            if not release.differences or (archive.name in released and options.allow_other):
                return release
            if archive.name in released:
                wrong = f"{archive.parent}/{release.differences[0]}"
                raise ValueError(f"not the released file: {wrong} (use --allow-other-data to accept it)")
        if (raw.is_file() and extract.is_archive(raw.name)) or (raw / "train").is_dir():
            return Files(manifest, raw)
    wanted = [*released, "a folder with train/CLASS/IMAGE and test/CLASS/IMAGE", "an archive of such a folder"]
    raise ValueError(f"--raw {', '.join(map(str, options.raw))}: images not found: none of {', '.join(wanted)} exists")


def downloaded(manifest: ImageManifest, options: Options) -> Source:
    """Return the archive of the release, downloading it if necessary.

    Raises: FetchError; OSError.
    """
    assert manifest.file is not None
    known = fetch(manifest.file, options.downloads, options.mirror, options.allow_other)
    return Release(manifest, options.downloads / manifest.file.name, known)
