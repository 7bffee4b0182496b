"""Free disk: how much a preparation needs. It is checked before anything else is done."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ...cli.progress import amount
from ...files import partial_of
from ...foreign import say
from ..extract import is_archive
from . import sources
from .manifest import Manifest

# Peak of the work, as a multiple of the raw text: the tokenised text with its subwords, or the subwords with fairseq's
# binary files, which exist twice while fairseq joins those of its workers.
WORK_FACTOR = 2.6
WORK_BYTES = 50_000_000  # whatever the corpus
UNPACKED = 4  # the text of an archive or .gz is at most so many times its size


def check(
    manifest: Manifest, way: sources.Way, out: Path, limit: int | None, texts: Sequence[sources.Text] | None
) -> None:
    """Print how much disk is needed.

    Raises: ValueError if less is free.
    """
    text, download = manifest.text_bytes, 0
    sizes: dict[Path, int | None]
    if texts is not None:
        sizes = {item.file: item.known.bytes for item in texts}
    else:
        sizes = way.sizes(manifest)
        for path, size in sizes.items():
            partial = partial_of(path)
            if not path.is_file():
                download += max(0, (size or 0) - (partial.stat().st_size if partial.is_file() else 0))
    known = {path: size for path, size in sizes.items() if size is not None}
    if len(known) == len(sizes):
        packed = sum(size for path, size in known.items() if path.name.endswith(".gz") or is_archive(path.name))
        total = sum(known.values())
        text = min(total + (UNPACKED - 1) * packed, max(total, manifest.text_bytes))
    if limit is not None and (pairs := sum(part.lines or 0 for part in manifest.parts["train"])):
        asked = sum(min(part.lines or limit, limit) for part in manifest.parts["train"])
        text = text * asked // pairs
    # An earlier run may have done a part of the work.
    work = int(WORK_FACTOR * text) + WORK_BYTES - size_of(partial_of(out))
    needed: dict[int, int] = {}
    for folder, size in ((way.downloads, download), (out, max(work, 0))):
        parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        disk, free = parent.stat().st_dev, shutil.disk_usage(parent).free
        needed[disk] = needed.get(disk, 0) + size
        if size:
            say(f"disk: about {amount(size, 'B')} needed for {folder}, {amount(free, 'B')} free")
        if needed[disk] > free:
            raise ValueError(
                f"{folder}: about {amount(needed[disk], 'B')} are needed on its disk and {amount(free, 'B')} are free; "
                "make room, or choose another place with --out and --downloads"
            )


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, which another process may be changing."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_size
    return size
