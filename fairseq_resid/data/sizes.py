"""Check the files of a data folder against their record: names, sizes and checksums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from ..files import sha256


def check_names(names: Iterable[str]) -> None:
    """Check the file names in a record, because the record may come from somebody else.

    Raises: ValueError naming the first file outside the data folder.
    """
    for name in names:
        if not name or "\0" in name or name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{name!r}: not a file of the data folder; must be a relative path without ..")


def check_sizes(data: Path, record: str, sizes: Mapping[str, int], checksums: Mapping[str, str]) -> None:
    """Compare the files of a data folder with the sizes and checksums in its record.

    Raises: ValueError naming every file that is missing or damaged.
    """
    damaged = []
    for name in dict.fromkeys([*sizes, *checksums]):
        file = data / name
        if not file.is_file():
            damaged.append(f"{name} is missing")
        elif name in sizes and file.stat().st_size != sizes[name]:
            damaged.append(f"{name} has {file.stat().st_size:,} bytes, not {sizes[name]:,}")
        elif name in checksums and sha256(file) != checksums[name]:
            damaged.append(f"{name} does not have the checksum recorded in {record}")
    if damaged:
        raise ValueError(f"{data}: damaged: {'; '.join(damaged)}; remove the folder and prepare it again")
