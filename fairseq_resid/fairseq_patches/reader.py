"""Read a checkpoint file as data: torch's weights-only loading, with the classes that fairseq saves."""

from __future__ import annotations

import argparse
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files import zip_damage
from .errors import UserError

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


def read(path: str | os.PathLike[str], is_mapped: bool = False) -> Any:
    """Read a checkpoint on the CPU; no code in it runs.

    is_mapped: read tensors from the file only when they are used, if its format allows it; the file must not change
    until then
    Raises: UserError naming the file if it is damaged, not a checkpoint or contains more than data; OSError if it
    cannot be opened.
    """
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip and not is_mapped and (damaged := zip_damage(Path(path))):  # torch does not compare checksums
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        with torch.serialization.safe_globals(ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped and is_zip)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise any exception; torch's own message is a page long
        said = " ".join(str(error).rpartition("WeightsUnpickler error:")[2].split())[:200]
        raise UserError(f"{path}: cannot be loaded: damaged, or contains more than data ({said})") from None
