"""The kinds of data folders, text and images: which fairseq task reads one, what makes one, what must be in it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import sha256
from .images import folder as images
from .text import folder as text


class FolderKind(ABC):
    """A kind of data folder.

    content: what it holds, and the room of this package that has its manifests; command: what prepares one
    record: the file that only such a folder has; task: fairseq's, that reads it
    unit: what a training counts as tokens; logged: how a name ends that only its training logs
    has_running_statistics: its models normalise over batches, so that 16-bit forms of them need --amp
    """

    content: str
    command: str
    task: str
    unit: str
    record: str | None = None
    logged: str | None = None
    has_running_statistics = False

    @abstractmethod
    def check(self, data: Path, hint: str = "") -> None:
        """Check that a data folder is whole, before a training; hint: what makes one, for messages.

        Raises: ValueError naming what is missing or damaged.
        """

    @abstractmethod
    def digests(self, data: Path) -> Iterable[str]:
        """Yield the checksums that identify the content of a data folder."""

    @abstractmethod
    def missing_split(self, data: Path, names: Sequence[str]) -> str | None:
        """Return the first split that a data folder lacks, in words; None if it has all, or is not there yet."""

    def fingerprint(self, data: Path) -> str:
        """Return by what the content of a data folder is recognised."""
        return hashlib.sha256("".join(self.digests(data)).encode()).hexdigest()[:16]


class TextFolderKind(FolderKind):
    """fairseq's binarised text, with ref/ and corpus.json."""

    content, command, task, unit = "text", "prepare", "translation", "target tokens"

    def check(self, data: Path, hint: str = "") -> None:
        held = of_folder(data)
        if held is not self:
            raise ValueError(f"{data}: holds {held.content}, and the recipe's task reads {self.content}")
        for pattern in ("dict.*.txt", "train*.bin", "train*.idx"):
            if len(list(data.glob(pattern))) < 2:
                raise ValueError(f"{data}: incomplete data folder: {pattern} is missing for a language{hint}")
        text.check(data)

    def digests(self, data: Path) -> Iterable[str]:
        """Yield those of dictionaries and reference texts."""
        return map(sha256, [*sorted(data.glob("dict.*.txt")), *sorted((data / "ref").iterdir())])

    def missing_split(self, data: Path, names: Sequence[str]) -> str | None:
        for name in names if data.is_dir() else ():
            reference = text.Corpus.read(data).reference(name)
            if not reference.is_file():
                return f"{name}: there is no reference text {reference}"
        return None


class ImageFolderKind(FolderKind):
    """Memory-mapped images, with images.json."""

    content, command, task, unit = "images", "prepare-images", images.TASK, "images"
    record, logged, has_running_statistics = images.RECORD, "error", True

    def check(self, data: Path, hint: str = "") -> None:
        images.check(data)

    def digests(self, data: Path) -> Iterable[str]:
        sums = images.read(data).checksums
        return (sums[name] for name in sorted(sums))

    def missing_split(self, data: Path, names: Sequence[str]) -> str | None:
        counts = images.read(data).counts
        missing = next((name for name in names if name not in counts), None)
        return f"{missing}: {data} has {', '.join(counts)}" if missing else None


TEXT, IMAGES = TextFolderKind(), ImageFolderKind()
KINDS: tuple[FolderKind, ...] = (TEXT, IMAGES)


def of_task(name: str) -> FolderKind:
    """Return the kind that a task of fairseq reads; text for tasks that are not ours."""
    return next((kind for kind in KINDS if kind.task == name), TEXT)


def of_folder(data: Path) -> FolderKind:
    """Return the kind of a data folder; text without the record of another kind."""
    return next((kind for kind in KINDS if kind.record and (data / kind.record).is_file()), TEXT)


def of_log(record: Mapping[str, Any]) -> FolderKind:
    """Return the kind of a training by a record of its log."""
    return next((kind for kind in KINDS if kind.logged and any(name.endswith(kind.logged) for name in record)), TEXT)
