"""The kinds of data folders: text, images and captions. Each has a fairseq task, a command and required files."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import sha256
from .captions import caption_folder as captions
from .images import image_folder as images
from .recorded import FolderRecord
from .text import folder as text


class FolderKind(ABC):
    """A kind of data folder.

    content: the type of data, which is also the name of its subpackage; command: the command that prepares it
    task: the fairseq task that reads it; unit: what training counts as tokens
    logged: suffix of a metric that only training on such data logs
    has_running_statistics: its models use batch normalisation, so 16-bit training needs --amp
    """

    content: str
    command: str
    task: str
    unit: str
    logged: str | None = None
    has_running_statistics = False

    def maker(self, name: str) -> str | None:
        """Return the command that prepares a corpus; None if the package does not know the corpus."""
        is_known = (Path(__file__).parent / self.content / "manifests" / f"{name}.yaml").is_file()
        return f"fairseq-resid {self.command} {name}" if is_known else None

    @abstractmethod
    def check(self, data: Path, hint: str = "") -> None:
        """Check before training that a data folder is complete.

        hint: how to make such a folder; appended to error messages
        Raises: ValueError naming the missing or damaged files.
        """

    @abstractmethod
    def digests(self, data: Path) -> Iterable[str]:
        """Yield the checksums that identify the content of a data folder."""

    @abstractmethod
    def missing_split(self, data: Path, names: Sequence[str]) -> str | None:
        """Describe the first missing split; return None if none is missing or the folder does not exist yet."""

    def fingerprint(self, data: Path) -> str:
        """Return a hash that identifies the content of a data folder."""
        return hashlib.sha256("".join(self.digests(data)).encode()).hexdigest()[:16]


class TextFolderKind(FolderKind):
    """Text binarised by fairseq, with ref/ and corpus.json."""

    content, command, task, unit = "text", "prepare", "translation", "target tokens"

    def check(self, data: Path, hint: str = "") -> None:
        held = of_folder(data)
        if held is not self:
            raise ValueError(f"{data}: contains {held.content}, but the recipe's task requires {self.content}")
        for pattern in ("dict.*.txt", "train*.bin", "train*.idx"):
            if len(list(data.glob(pattern))) < 2:
                raise ValueError(f"{data}: incomplete data folder: {pattern} is missing for a language{hint}")
        text.check(data)

    def digests(self, data: Path) -> Iterable[str]:
        """Yield the checksums of the dictionaries and the reference texts."""
        return map(sha256, [*sorted(data.glob("dict.*.txt")), *sorted(data.glob("ref/*"))])

    def missing_split(self, data: Path, names: Sequence[str]) -> str | None:
        for name in names if data.is_dir() else ():
            reference = text.Corpus.read(data).reference(name)
            if not reference.is_file():
                return f"{name}: reference text {reference} does not exist"
        return None


class RecordedFolderKind(FolderKind):
    """A folder with a record of all its files, which only this kind of folder contains; record_type: its content."""

    record_type: type[FolderRecord]

    def check(self, data: Path, hint: str = "") -> None:
        self.record_type.checked(data)

    def digests(self, data: Path) -> Iterable[str]:
        sums = self.record_type.of(data).checksums
        return (sums[name] for name in sorted(sums))

    def missing_split(self, data: Path, names: Sequence[str]) -> str | None:
        counts = self.record_type.of(data).counts
        missing = next((name for name in names if name not in counts), None)
        return f"{missing}: no such split; {data} has {', '.join(counts)}" if missing else None


class ImageFolderKind(RecordedFolderKind):
    """Memory-mapped images, with images.json."""

    content, command, task, unit = "images", "prepare-images", images.TASK, "images"
    record_type, logged, has_running_statistics = images.ImageRecord, "error", True


class CaptionFolderKind(RecordedFolderKind):
    """Captions and memory-mapped region features, with captions.json. Training logs the same metrics as for text."""

    content, command, task, unit = "captions", "prepare-captions", captions.TASK, TextFolderKind.unit
    record_type = captions.CaptionRecord

    def maker(self, name: str) -> str | None:
        commands = {"coco-captions": f"fairseq-resid {self.command} {name}", "mosaic-captions": f"data-prep/{name}.py"}
        return commands.get(name)


TEXT, IMAGES, CAPTIONS = TextFolderKind(), ImageFolderKind(), CaptionFolderKind()
RECORDED: tuple[RecordedFolderKind, ...] = (IMAGES, CAPTIONS)
KINDS: tuple[FolderKind, ...] = (TEXT, *RECORDED)


def of_task(name: str) -> FolderKind:
    """Return the kind of folder that a fairseq task reads; text for tasks other than ours."""
    return next((kind for kind in KINDS if kind.task == name), TEXT)


def of_folder(data: Path) -> FolderKind:
    """Return the kind of a data folder: text unless it contains the record of another kind."""
    return next((kind for kind in RECORDED if (data / kind.record_type.file).is_file()), TEXT)


def is_data_folder(path: Path) -> bool:
    """Return whether a folder has a record or dictionary that only data folders have."""
    return of_folder(path) is not TEXT or any(path.glob("dict.*.txt"))


def of_log(record: Mapping[str, Any]) -> FolderKind:
    """Return the kind of data that a run was trained on, given a record of its log."""
    return next((kind for kind in KINDS if kind.logged and any(name.endswith(kind.logged) for name in record)), TEXT)
