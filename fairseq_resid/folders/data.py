"""The data folder: DATA/corpus.json, and whether the files that it names are still as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import sha256

CORPUS = "corpus.json"


def fingerprints(data: Path) -> dict[str, dict[str, Any]]:
    """Return what corpus.json holds to know every file of a data folder again: sizes in bytes, SHA-256 checksums."""
    files = {str(file.relative_to(data)): file for file in sorted(data.rglob("*")) if file.is_file()}
    return {
        "sizes": {name: file.stat().st_size for name, file in files.items()},
        "checksums": {name: sha256(file) for name, file in files.items()},
    }


def check(data: Path, verify: bool = False) -> bool:
    """Compare the files of a data folder with corpus.json: their sizes, and with `verify` their checksums.

    Returns: whether the sizes are known. A folder that fairseq-preprocess made alone has no corpus.json, and one that a
    version before 0.3.2 made has checksums only.
    Raises: ValueError naming every file that is missing or damaged, or corpus.json where it cannot be read.
    """
    told = data / CORPUS
    if not told.is_file():
        return False
    try:
        known = json.loads(told.read_text(encoding="utf-8"))
        sizes, checksums = dict(known.get("sizes", {})), dict(known.get("checksums", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{told}: cannot be read: {error}") from None
    damaged = []
    for name in dict.fromkeys([*sizes, *(checksums if verify else ())]):
        file = data / name
        if not file.is_file():
            damaged.append(f"{name} is missing")
        elif name in sizes and file.stat().st_size != sizes[name]:
            damaged.append(f"{name} has {file.stat().st_size:,} bytes, not {sizes[name]:,}")
        elif verify and name in checksums and sha256(file) != checksums[name]:
            damaged.append(f"{name} has another checksum than {CORPUS} says")
    if damaged:
        raise ValueError(f"{data}: damaged: {'; '.join(damaged)}; remove the folder and prepare it again")
    return bool(sizes)
