"""What the preparations of text, images and captions share: flags, the working folder, and checks of a finished folder.

A preparation works in OUT.partial and renames its result to OUT when it is complete. OUT.partial contains a mark, a
file that says which input the unfinished work is of.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import records
from ..console import say
from ..files import locked, working_folder
from .recorded import Recorded

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T", bound=Recorded)


@dataclass(frozen=True)
class Options:
    """Where to find the input, in --raw, else at --mirror, else at the URLs of the manifest, and the output folder.

    allow_other: accept input that differs from the manifest
    verify: compare checksums of a finished data folder, not only file sizes
    """

    out: Path
    raw: Sequence[Path] = ()
    mirror: str | None = None
    downloads: Path = Path("data-bin/downloads")
    allow_other: bool = False
    verify: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Return the values of the flags that are named like fields."""
        return cls(**{item.name: getattr(args, item.name) for item in fields(cls) if hasattr(args, item.name)})


def add_folder_flags(parser: argparse.ArgumentParser, other: str = "", default: str = "") -> None:
    """Add the flags --out, --verify and --allow-other-data.

    other: what --allow-other-data accepts; empty: there is no such flag
    default: of --out; empty: the flag is required
    """
    add = parser.add_argument
    about = f"output folder (default: {default})" if default else "output folder"
    add("--out", type=Path, required=not default, metavar="DATA", help=about)
    if other:
        accepts = f"accept {other} that differ from the manifest"
        add("--allow-other-data", dest="allow_other", action="store_true", help=accepts)
    add("--verify", action="store_true", help="compare checksums of a finished data folder, not only file sizes")


def add_source_flags(parser: argparse.ArgumentParser, raw: str, file: str) -> None:
    """Add the flags --raw, --mirror and --downloads. raw: help for --raw; file: what is downloaded from a mirror"""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--raw", action="append", type=Path, default=[], metavar="PATH", help=raw)
    place.add_argument("--mirror", metavar="URL", help=f"download {file} from URL/NAME (file:// is allowed)")
    parser.add_argument(
        "--downloads",
        type=Path,
        default=Options.downloads,
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


def finished(out: Path, kind: type[T]) -> T:
    """Return the record of a finished data folder.

    Raises: ValueError if the folder has none, or one of an early version.
    """
    record = records.remembered(out / kind.file, kind)
    if record is None or not record.asked:
        raise ValueError(
            f"{out}: exists, but contains no {kind.file} that this version can read; remove it or choose another --out"
        )
    return record


def check_settings(out: Path, other: str, found: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raise ValueError if a data folder was made with other settings; other: what it then contains."""

    def shown(setting: Any) -> str:
        return ", ".join(setting) if isinstance(setting, list) else str(setting)

    pairs = [(key, found.get(key), setting) for key, setting in mine.items()]
    differing = [f"{key} is {shown(theirs)}, not {shown(ours)}" for key, theirs, ours in pairs if theirs != ours]
    if differing:
        raise ValueError(f"{out}: contains {other} ({', '.join(differing)}); choose another --out")


def show_differences(record: Recorded) -> None:
    """Print how a data folder differs from the released corpus, and what was not verified."""
    for difference in record.differences:
        say(f"not as released: {difference}")
    if record.not_verified:
        say(f"not verified (no known checksum): {', '.join(record.not_verified)}")
