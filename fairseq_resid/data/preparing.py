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


def made(
    out: Path,
    mark: str,
    mine: Mapping[str, Any],
    make: Callable[[Path, int], Path],
    keeps: bool = True,
    refuses: bool = False,
) -> bool:
    """Make the data folder OUT unless it exists, or another process is making it; return whether this call made it.

    mark: the name of the file that says what unfinished work is of; mine: its content for this input
    make: returns the path of the complete folder, given the working folder and the file descriptor of its lock
    keeps: whether unfinished work is kept after an error, for the next run
    refuses: whether unfinished work on other input is an error; otherwise it is removed
    Raises: ValueError if the working folder contains other files; the errors of `make`.
    """
    work = working_folder(out)
    if not out.exists():
        with locked(work / ".lock", f"{work}: another process is using this folder", wait=True) as lock:
            if not out.exists():
                _check_unfinished(work, mark, dict(mine), refuses)
                try:
                    records.write(work / mark, dict(mine))
                    os.replace(make(work, lock), out)
                finally:
                    if out.exists() or not keeps or _names(work) <= {mark}:
                        shutil.rmtree(work)
                return True
            shutil.rmtree(work)
    if (work / mark).is_file():  # the run was killed after renaming its result
        shutil.rmtree(work, ignore_errors=True)
    return False


def _names(work: Path) -> set[str]:
    return {path.name for path in work.iterdir()} - {".lock"}


def _check_unfinished(work: Path, mark: str, mine: dict[str, Any], refuses: bool) -> None:
    """Remove unfinished work on other input, or refuse it."""
    others, known = _names(work), records.remembered(work / mark, dict)
    if others and mark not in others:
        raise ValueError(
            f"{work}: contains {min(others)}, which this command did not create; remove it or choose another --out"
        )
    if known is not None and known != mine:
        if refuses:
            found = f"unfinished work on {known}, not {mine}"
            raise ValueError(f"{work}: contains {found}; remove it or choose another --out")
        for path in (work / name for name in others):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def show_differences(record: FolderRecord) -> None:
    """Print how a data folder differs from the released corpus, and what was not verified."""
    for difference in record.differences:
        say(f"not as released: {difference}")
    if record.unverified:
        say(f"not verified (no known checksum): {', '.join(record.unverified)}")
