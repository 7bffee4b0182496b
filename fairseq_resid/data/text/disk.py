"""Check that there is enough free disk space, before a preparation writes or downloads anything."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ...cli.progress import amount
from ...console import say
from ...files import partial_of
from ..extract import is_archive
from ..preparing import Options
from . import sources
from .manifest import TextManifest

# Peak disk use as a multiple of the raw text. At the peak, the disk contains the tokenised text and its subwords, or
# the subwords and two copies of the binary files while fairseq joins the files of its workers.
WORK_FACTOR = 2.6
WORK_BYTES = 50_000_000  # needed for a corpus of any size
UNPACKED = 4  # estimated ratio of the unpacked size to that of an archive or .gz


def check(manifest: TextManifest, options: Options, limit: int | None, texts: Sequence[sources.Text] | None) -> None:
    """Print how much disk space is needed.

    Raises: ValueError if less is free.
    """
    text, download = manifest.text_bytes, 0
    # The files and their sizes, None if unknown.
    sizes: dict[Path, int | None] = {item.file: item.known.bytes for item in texts or ()}
    if texts is None:
        for part in (part for split in manifest.splits for part in manifest.parts[split]):
            index = next(iter(sources.downloaded_alternatives(part, options.downloads)), 0)  # as `sources.find` chooses
            for file in (manifest.file(places[index]) for places in part.places.values()):
                path = options.downloads / file.name
                sizes[path] = path.stat().st_size if path.is_file() else file.bytes or file.about
        for path, size in sizes.items():
            if not path.is_file():
                download += max(0, (size or 0) - size_of(partial_of(path)))
    known = {path: size for path, size in sizes.items() if size is not None}
    if len(known) == len(sizes):
        packed = sum(size for path, size in known.items() if path.name.endswith(".gz") or is_archive(path.name))
        total = sum(known.values())
        text = min(total + (UNPACKED - 1) * packed, max(total, manifest.text_bytes))
    if limit is not None and (pairs := sum(part.lines or 0 for part in manifest.parts["train"])):
        limited = sum(min(part.lines or limit, limit) for part in manifest.parts["train"])
        text = text * limited // pairs
    # An earlier run may have done part of the work.
    work = int(WORK_FACTOR * text) + WORK_BYTES - size_of(partial_of(options.out))
    needed: dict[int, int] = {}
    for folder, size in ((options.downloads, download), (options.out, max(work, 0))):
        parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        disk, free = parent.stat().st_dev, shutil.disk_usage(parent).free
        needed[disk] = needed.get(disk, 0) + size
        if size:
            say(f"disk: about {amount(size, 'B')} needed for {folder}, {amount(free, 'B')} free")
        if needed[disk] > free:
            raise ValueError(
                f"{folder}: not enough disk space: about {amount(needed[disk], 'B')} needed, {amount(free, 'B')} free; "
                "free some space, or use --out and --downloads to choose another disk"
            )


def size_of(path: Path) -> int:
    """Return the size of a file, or the total size of a folder, in bytes; 0 if it does not exist."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
