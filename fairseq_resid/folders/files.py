"""Text files as every part of the project reads and writes them: split on LF alone, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text, split on LF alone: other Unicode line breaks belong to the sentences.

    Raises: ValueError naming the file where it is missing, and file and line where it is not UTF-8 or holds a NUL.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    lines = []
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None
            if "\0" in line:
                raise ValueError(f"{path}:{number}: holds a NUL byte")
            lines.append(line.rstrip("\r\n"))
    return lines


def read_pairs(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return the lines of both sides of a parallel text.

    Raises: ValueError naming the files where one is missing or empty, or their line counts differ.
    """
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"{source} has {len(sides[0])} lines, {target} has {len(sides[1])}: they must be equal")
    if not sides[0]:
        raise ValueError(f"{source}: empty")
    return sides


def write_atomically(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it, so that a reader sees the old file or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
