"""Recover a missing or damaged checkpoint_last.pt from the other checkpoints of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..files import replacing, zip_damage
from .run import Run, saved_at


def is_whole(file: Path) -> bool:
    """Return whether a checkpoint exists and all its CRCs match."""
    return file.is_file() and zip_damage(file) is None


def other_checkpoints(run: Run) -> list[Path]:
    """Return the checkpoints that can replace checkpoint_last.pt, best first: the numbered ones, newest first, then
    checkpoint_best.pt."""
    numbered = sorted([*run.numbered("update"), *run.numbered("epoch")], key=saved_at, reverse=True)
    return [*numbered, *filter(Path.exists, [run.best])]


def newest_whole(run: Run) -> Path | None:
    """Return the checkpoint to recover from; None if none is intact."""
    return next(filter(is_whole, other_checkpoints(run)), None)


def restore(run: Run, checkpoint: Path) -> None:
    """Replace checkpoint_last.pt with a copy of another checkpoint."""
    with replacing(run.last) as partial:
        shutil.copyfile(checkpoint, partial)
