"""Helpers for tests that run the data-prep scripts on mirrors with made-up text."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from fairseq_resid.data.text import prepare

ROOT = Path(__file__).resolve().parents[2]


def content(folder: Path) -> dict[str, str]:
    """Return the hash of every file in a folder, by relative path."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
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
