"""Preparation of small released and custom corpora, on mirrors with made-up text."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_resid.data.text import custom, prepare
from support import mirror

ROOT = Path(__file__).resolve().parents[2]
Released = tuple[Path, Callable[..., int]]


def content(folder: Path, without: str = "") -> dict[str, str]:
    """Return the hash of every file in a folder, except the files with one name, by relative path."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != without)
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main(name: str, out: Path, *flags: object) -> int:
    folder = out.parent / "downloads"
    size = {"iwslt15-en-vi": 150, "multi30k-en-de": 150}.get(name, 250)
    given = ["--out", out, "--downloads", folder, "--vocab-size", size, "--workers", 1, "--allow-other-data", *flags]
    return prepare.main([name, *map(str, given)])


def record_of(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "corpus.json").read_text())
    return found


def decoded(data: Path, split: str, language: str) -> list[str]:
    """Return the text in a data folder's binary files, with subwords joined into words."""
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(data / f"dict.{language}.txt"))
    pair = "-".join(record_of(data)[side] for side in ("source", "target"))
    stored = data_utils.load_indexed_dataset(str(data / f"{split}.{pair}.{language}"), words, "mmap")
    return [words.string(item, bpe_symbol="sentencepiece") for item in stored]


def command(hosts: dict[str, Path], out: Path) -> list[str]:
    given = ["--mirror", hosts["de"].as_uri(), "--downloads", out.parent / "dl", "--out", out]
    flags = [*map(str, given), "--vocab-size", "250", "--allow-other-data", "--workers", "2"]
    return [sys.executable, "-m", "fairseq_resid", "prepare", "wmt14-en-de", *flags]


def fail(*_: Any) -> None:
    raise ChildProcessError("fairseq-preprocess failed")


def other_text(host: Path, name: str) -> None:
    """Replace an official archive with an archive that has different text but the same number of lines."""
    left, right = mirror.sides(mirror.pairs(120, ("en", "de"), 77))
    mirror.archive(host / name, {"commoncrawl.de-en.de": right, "commoncrawl.de-en.en": left})


def unpack(host: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in host.iterdir():
        shutil.unpack_archive(file, folder)
    return folder


def build(raw: dict[str, Path], out: Path, *flags: object) -> int:
    """Run `prepare custom` on texts, given as the prefix of each split."""
    given = ["--name", "tiny", "--source", "en", "--target", "xx", "--vocab-size", "90", "--workers", "1"]
    prefixes = [word for split, prefix in raw.items() for word in (f"--{split}", str(prefix))]
    return custom.main([*given, *prefixes, "--out", str(out), *map(str, flags)])
