"""Small released and custom corpora, and their preparation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_resid.data.text import custom
from support import mirror

Released = tuple[Path, Callable[..., int]]


def record_of(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "corpus.json").read_text())
    return found


def other_text(host: Path, name: str) -> None:
    """Replace an official archive with an archive that has different text but the same number of lines."""
    left, right = mirror.sides(mirror.pairs(120, ("en", "de"), 77))
    mirror.archive(host / name, {"commoncrawl.de-en.de": right, "commoncrawl.de-en.en": left})


def unpack(host: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in host.iterdir():
        shutil.unpack_archive(file, folder)
    return folder


def build(raw: dict[str, Path], out: Path, *flags: str) -> int:
    given = ["--name", "tiny", "--source", "en", "--target", "xx", "--vocab-size", "90", "--workers", "1"]
    prefixes = [word for split, prefix in raw.items() for word in (f"--{split}", str(prefix))]
    return custom.main([*given, *prefixes, "--out", str(out), *flags])
