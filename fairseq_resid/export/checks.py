"""Checks of an export folder, which may come from a stranger, before and while an engine uses it.

The loader of each engine declares its files (FILES, see engine.Kind). `model_file`, `onnx_file` and `huggingface` check
the content of the binary files before the engine's library loads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..files import inside, open_regular
from ..foreign import printable

MOST_SHOWN = 1000  # characters of a library's message, which may quote a name of any length


def memory() -> int:
    """Return the memory of this machine in bytes; a larger model cannot be loaded."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


MEMORY = memory()


def check_files(folder: Path, names: Mapping[str, int], foreign: Iterable[str], writer: str) -> None:
    """Check that the files that an engine opens are regular files inside the folder, and not too large.

    names: the names of the files, any of which may be missing, and their maximum sizes in bytes
    foreign: the names of files that the engine's library would open as well, although `writer` never writes them
    Raises: ValueError or OSError naming the file and the problem.
    """
    for name in foreign:
        if os.path.lexists(folder / name):
            raise ValueError(f"{folder / name}: not written by {writer}; remove it")
    for name, most in names.items():
        if os.path.lexists(folder / name):
            open_regular(inside(folder, name), most).close()


@contextmanager
def calling(library: str, path: Path, does: str = "fails") -> Iterator[None]:
    """Turn any error from an engine's library, whose exceptions have no common class, into one line naming the file.

    Only calls to the library belong in this context, because it would also replace our own messages.
    Raises: ValueError.
    """
    try:
        yield
    except Exception as error:
        reason = printable(" ".join(str(error).split()))[:MOST_SHOWN] or type(error).__name__
        raise ValueError(f"{path}: {library} {does}: {reason}") from None
