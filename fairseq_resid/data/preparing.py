"""What the preparations of text, images and captions share: flags, the working folder, and checks of a finished folder.

A preparation works in OUT.partial and renames its result to OUT when it is complete. OUT.partial contains a mark, a
file that says which input the unfinished work is of.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import records
from ..console import say
from ..files import locked, working_folder
from .recorded import FolderRecord


def add_folder_flags(parser: argparse.ArgumentParser, other: str, default: str = "") -> None:
    """Add the flags --out, --allow-other-data and --verify.

    other: what --allow-other-data accepts; default: of --out; empty if the flag is required
    """
    add = parser.add_argument
    about = f"output folder (default: {default})" if default else "output folder"
    add("--out", type=Path, required=not default, metavar="DATA", help=about)
    add("--allow-other-data", action="store_true", help=f"accept {other} that differ from the manifest")
    add("--verify", action="store_true", help="compare checksums of a finished data folder, not only file sizes")


def add_source_flags(parser: argparse.ArgumentParser, raw: str, file: str) -> None:
    """Add the flags --raw, --mirror and --downloads. raw: help for --raw; file: what is downloaded from a mirror"""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--raw", action="append", type=Path, default=[], metavar="PATH", help=raw)
    place.add_argument("--mirror", metavar="URL", help=f"download {file} from URL/NAME (file:// is allowed)")
    parser.add_argument(
        "--downloads",
        type=Path,
        default=Path("data-bin/downloads"),
        metavar="DIR",
        help="folder for downloads (default: %(default)s)",
    )


def made(out: Path, mark: str, mine: Mapping[str, Any], make: Callable[[Path, int], Path], keeps: bool = True) -> bool:
    """Make the data folder OUT unless it exists, or another process is making it; return whether this call made it.

    mark: the name of the file that says what unfinished work is of; mine: its content for this input
    make: returns the path of the complete folder, given the working folder and the file descriptor of its lock
    keeps: whether unfinished work is kept after an error, for the next run
    Raises: ValueError if the working folder contains other files, or unfinished work on other input; the errors of
    `make`.
    """
    work = working_folder(out)
    if not out.exists():
        with locked(work / ".lock", f"{work}: another process is using this folder", wait=True) as lock:
            if not out.exists():
                others = [path.name for path in work.iterdir() if path.name != ".lock"]
                if others and not (work / mark).is_file():
                    raise ValueError(
                        f"{work}: contains {others[0]}, which this command did not create; remove it or choose "
                        "another --out"
                    )
                if (known := records.remembered(work / mark, dict)) not in (None, dict(mine)):
                    raise ValueError(
                        f"{work}: contains unfinished work on {known}, not {dict(mine)}; remove it or choose another "
                        "--out"
                    )
                records.write(work / mark, dict(mine))
                try:
                    os.replace(make(work, lock), out)
                finally:
                    if out.exists() or not keeps:
                        shutil.rmtree(work)
                return True
            shutil.rmtree(work)
    if (work / mark).is_file():  # the run was killed after renaming its result
        shutil.rmtree(work, ignore_errors=True)
    return False


def show_differences(record: FolderRecord) -> None:
    """Print how a data folder differs from the released corpus, and what was not verified."""
    for difference in record.differences:
        say(f"not as released: {difference}")
    if record.unverified:
        say(f"not verified (no known checksum): {', '.join(record.unverified)}")
