"""Read a checkpoint file as data: torch's weights-only loading, with the classes that fairseq saves."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import reprlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files import zip_damage

# Classes that a pickle of fairseq may name, besides those of torch: argparse's namespace, and numpy numbers and arrays,
# which numpy 1 writes as members of numpy.core and numpy 2 as members of numpy._core.
_MULTIARRAY = (getattr(np, "_core", None) or np.core).multiarray
ALLOWED: list[Any] = [
    argparse.Namespace,
    np.dtype,
    np.ndarray,
    *{type(np.dtype(code)) for code in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]},
    *((getattr(_MULTIARRAY, name), f"numpy.{core}.multiarray.{name}")
      for name in ("scalar", "_reconstruct") for core in ("core", "_core")),
]  # fmt: skip


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100


def shown(value: Any) -> str:
    """Return a short one-line representation of a value from a file."""
    return _short.repr(value)[:200]


def read(path: str | os.PathLike[str], is_mapped: bool = False) -> Any:
    """Read a checkpoint on the CPU; no code in it runs.

    is_mapped: read tensors from the file only when they are used, if its format allows it; the file must not change
    until then
    Raises: ValueError naming the file if it is damaged, not a checkpoint or contains more than data; OSError if it
    cannot be opened.
    """
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip and not is_mapped and (damaged := zip_damage(Path(path))):  # torch does not compare checksums
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        with torch.serialization.safe_globals(ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped and is_zip)
    except pickle.UnpicklingError as error:  # torch's message is a page long
        said = " ".join(str(error).partition("WeightsUnpickler error:")[2].split())
        said = re.split(r"(?:\.|^) ?(?:Please|Check) ", said)[0]
        raise ValueError(f"{path}: cannot be loaded: damaged, or contains more than data ({said})") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise any exception
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: cannot be loaded: damaged or not a checkpoint ({said})") from None
