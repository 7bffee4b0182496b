"""A checkpoint is written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Iterator
from typing import Any

import torch

from .errors import UserError


def _bytes_of(value: Any) -> int:
    """Return how many bytes the tensors in nested dicts and lists take."""
    if isinstance(value, torch.Tensor):
        return value.nelement() * value.element_size()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sum(map(_bytes_of, items))


@contextlib.contextmanager
def _writing(path: str, size: int) -> Iterator[None]:
    """Name a file that could not be written and how much it takes; remove what was written of it as PATH.tmp."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch has a RuntimeError for a write that wrote less
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.tmp")
        free = shutil.disk_usage(os.path.dirname(path) or ".").free
        said = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = os.strerror(errno.ENOSPC) if free < size else said
        raise UserError(
            f"{path}: cannot be written: {reason}; it takes {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free. "
            "The checkpoints before it are whole"
        ) from error


def write_whole() -> None:
    """Let a checkpoint be written whole or not at all, under each of its names, and name it if that fails.

    checkpoint_last.pt and checkpoint_best.pt are plain copies of a numbered file: a full disk or a kill leaves a part
    of one, and the old one is lost.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    write, copy_elsewhere = checkpoint_utils.torch_persistent_save, PathManager.copy

    @functools.wraps(write)
    def torch_persistent_save(obj, filename, *args, **kwargs):  # type: ignore[no-untyped-def]
        with _writing(filename, _bytes_of(obj)):
            return write(obj, filename, *args, **kwargs)

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not PathManager.supports_rename(dst_path):
            return copy_elsewhere(src_path, dst_path, overwrite)
        with _writing(dst_path, os.path.getsize(src_path)):
            shutil.copyfile(src_path, f"{dst_path}.tmp")
            os.replace(f"{dst_path}.tmp", dst_path)
        return True

    checkpoint_utils.torch_persistent_save = torch_persistent_save
    PathManager.copy = staticmethod(copy)
