"""Patches that write every numbered checkpoint, atomically, and make the last one resumable."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .errors import UserError
from .loading import load_checkpoint
from .patching import StandIn, wrap


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Name the file and the free space if it cannot be written, and remove the partial file PATH.tmp."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a short write
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.tmp")
        free = shutil.disk_usage(os.path.dirname(path) or ".").free / 1e6
        said = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(
            f"{path}: cannot be written: {said} ({free:,.1f} MB free); earlier checkpoints are intact"
        ) from error


def save_at_every_interval() -> None:
    """Save at every multiple of --save-interval-updates under --no-epoch-checkpoints.

    fairseq omits the save if the update is the last of its epoch, because checkpointN.pt has the same weights then.
    With --no-epoch-checkpoints there is no checkpointN.pt: the numbered checkpoints would have gaps, and there would be
    none at all if the interval is a multiple of the length of an epoch.
    """
    from fairseq import checkpoint_utils

    @wrap(checkpoint_utils)
    def save_checkpoint(original, cfg, trainer, epoch_itr, *args, **kwargs):
        if cfg.no_epoch_checkpoints:
            # fairseq uses the answer only to decide what to save and what to delete.
            epoch_itr = StandIn(epoch_itr, end_of_epoch=lambda: False)
        return original(cfg, trainer, epoch_itr, *args, **kwargs)


def keep_last_optimizer_state() -> None:
    """Keep the optimizer state in checkpoint_last.pt under --no-save-optimizer-state, so that training can resume.

    fairseq removes it there too: a resumed run would reset Adam and the number of updates. We first write all files
    with the optimizer state, and then remove it from all except checkpoint_last.pt. If the process is killed in
    between, some files are larger than necessary.
    """
    from fairseq import checkpoint_utils

    @wrap(checkpoint_utils)  # fairseq keeps the best validation loss as an attribute of the function with this name
    def save_checkpoint(original, cfg, trainer, *args, **kwargs):
        if not cfg.no_save_optimizer_state or cfg.no_last_checkpoints:
            return original(cfg, trainer, *args, **kwargs)
        last = f"checkpoint_last{trainer.checkpoint_suffix}.pt"
        begun = time.time() - 1  # file systems have coarse timestamps
        cfg.no_save_optimizer_state = False
        try:
            saved = original(cfg, trainer, *args, **kwargs)
        finally:
            cfg.no_save_optimizer_state = True
        if trainer.should_save_checkpoint_on_current_rank:
            for file in Path(cfg.save_dir).glob(f"checkpoint*{trainer.checkpoint_suffix}.pt"):
                if file.name != last and file.stat().st_mtime >= begun:
                    _strip(file)
        return saved


def _strip(file: Path) -> None:
    """Remove the optimizer state from a checkpoint, if it has one."""
    state = load_checkpoint(file)
    if state.pop("last_optimizer_state", None) is None:
        return
    partial = file.with_name(f"{file.name}.tmp")
    with _writing(str(file)):
        torch.save(state, partial)
        os.replace(partial, file)


def write_whole() -> None:
    """Write checkpoints atomically, under each of their names, and name the file if that fails.

    fairseq writes checkpoint_last.pt and checkpoint_best.pt as plain copies of a numbered file. If the disk is full or
    the process is killed, the copy would be incomplete and the old file lost.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    @wrap(checkpoint_utils)
    def torch_persistent_save(original, obj, filename, *args, **kwargs):
        with _writing(filename):
            return original(obj, filename, *args, **kwargs)

    copy_elsewhere = PathManager.copy

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not PathManager.supports_rename(dst_path):
            return copy_elsewhere(src_path, dst_path, overwrite)
        with _writing(dst_path):
            shutil.copyfile(src_path, f"{dst_path}.tmp")
            os.replace(f"{dst_path}.tmp", dst_path)
        return True

    PathManager.copy = staticmethod(copy)
