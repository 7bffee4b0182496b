"""Data folders with a record, a JSON file that lists all other files, and the checks of a folder against its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .. import records
from ..files import sha256

if TYPE_CHECKING:
    from typing_extensions import Self

SPLITS = ("train", "valid", "test")


class Recorded:
    """The record of a data folder, which lists all other files.

    file: its name in the folder; writer: the command that writes it
    name: of the corpus; differences: differences from the corpus of this name
    unverified: input without a known checksum; None in folders of old versions
    asked: the settings that the folder was made with
    sizes, checksums: bytes and SHA-256 of every other file of the folder; missing in some folders of old versions
    """

    file: ClassVar[str]
    writer: ClassVar[str]

    name: str
    differences: Sequence[str]
    unverified: Sequence[str] | None
    asked: dict[str, Any]
    sizes: dict[str, int]
    checksums: dict[str, str]

    @property
    def not_verified(self) -> Sequence[str]:
        """The input without a known checksum."""
        return self.unverified or ()

    @classmethod
    def of(cls, data: Path) -> Self:
        """Read the record of a data folder.

        Raises: ValueError naming the folder or file and the problem; OSError.
        """
        return records.read(data / cls.file, cls, cls.writer)

    @classmethod
    def checked(cls, data: Path, verify: bool = False) -> Self:
        """Read the record of a data folder, and compare the sizes of its files with it.

        verify: compare checksums too
        Raises: ValueError naming every file that is missing or damaged; the errors of `of`.
        """
        known = cls.of(data)
        damaged, checksums = [], known.checksums if verify else {}
        for name in dict.fromkeys([*known.sizes, *checksums]):
            file = data / name
            if not file.is_file():
                damaged.append(f"{name} is missing")
            elif name in known.sizes and file.stat().st_size != known.sizes[name]:
                damaged.append(f"{name} has {file.stat().st_size:,} bytes, not {known.sizes[name]:,}")
            elif name in checksums and sha256(file) != checksums[name]:
                damaged.append(f"{name} does not have the checksum recorded in {cls.file}")
        if damaged:
            raise ValueError(f"{data}: damaged: {'; '.join(damaged)}; remove the folder and prepare it again")
        return known

    def write(self, data: Path) -> None:
        """Write the record of a data folder, with the sizes and checksums of all files in it."""
        files = {file.relative_to(data).as_posix(): file for file in sorted(data.rglob("*")) if file.is_file()}
        sizes = {name: file.stat().st_size for name, file in files.items()}
        sums = {name: sha256(file) for name, file in files.items()}
        records.write(data / self.file, replace(self, sizes=sizes, checksums=sums))  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True)
class FolderRecord(Recorded):
    """The record of a data folder of images or captions.

    counts: number of images by split; read: SHA-256 of each input, by name
    """

    name: str
    counts: dict[str, int]
    read: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)


Record = TypeVar("Record", bound=Recorded)


@dataclass(frozen=True)
class RecordedFolder(Generic[Record]):
    """A data folder: its path and its record."""

    path: Path
    record: Record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def differences(self) -> Sequence[str]:
        return self.record.differences

    @property
    def unverified(self) -> Sequence[str]:
        return self.record.not_verified

    @property
    def preparation(self) -> dict[str, Any]:
        return self.record.asked
