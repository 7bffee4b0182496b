"""Recover a missing or damaged checkpoint_last.pt from the other checkpoints of a run.

fairseq resumes only from this file. Without it, training starts from scratch, and fairseq then deletes the new
checkpoints instead of the old ones, whose numbers are higher. A crash of the machine, or fairseq without the plugin,
can leave a truncated file.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ..console import say
from ..files import replacing, zip_damage
from .run import TRAIN, Run, saved_at
from .training_command import TrainingCommand


def is_whole(file: Path) -> bool:
    """Return whether a checkpoint exists and all its CRCs match."""
    return file.is_file() and zip_damage(file) is None


def other_checkpoints(run: Run) -> list[Path]:
    """Return the checkpoints that can replace checkpoint_last.pt, best first: the numbered ones, newest first, then
    checkpoint_best.pt."""
    numbered = sorted([*run.numbered("update"), *run.numbered("epoch")], key=saved_at, reverse=True)
    return [*numbered, *filter(Path.exists, [run.file("checkpoint_best.pt")])]


def repair_to_resume(run: Run, command: TrainingCommand) -> None:
    """Replace a missing or damaged checkpoint_last.pt with the newest intact checkpoint.

    Raises: ValueError if there are checkpoints but none is intact, or the intact ones have no optimizer state.
    """
    if is_whole(run.last):
        return
    newest = next(filter(is_whole, other_checkpoints(run)), None)
    if newest and "--no-save-optimizer-state" in command:
        raise ValueError(
            f"{run.last}: missing or damaged, and the other checkpoints have no optimizer state "
            "(--no-save-optimizer-state); choose another --run folder or remove this one"
        )
    if newest:
        say(f"{run.last}: missing or damaged; resuming from {newest.name}")
        _restore(run, newest)
    elif run.last.exists() or other_checkpoints(run):
        raise ValueError(f"{run.path}: all checkpoints are damaged; choose another --run folder or remove this one")


def repair_to_evaluate(run: Run) -> None:
    """Replace a missing or damaged checkpoint_last.pt if another checkpoint was saved at the end of training.

    Raises: ValueError naming the newest intact checkpoint if training went on after it.
    """
    from ..fairseq_patches.loading import load_checkpoint
    from .trained_on import num_updates

    if is_whole(run.last) or (newest := next(filter(is_whole, other_checkpoints(run)), None)) is None:
        return
    saved, reached = num_updates(load_checkpoint(newest)) or 0, run.training_summary().num_updates or 0
    if saved < reached:
        raise ValueError(
            f"{run.last}: missing or damaged, and the newest intact checkpoint, {newest.name}, was saved at update "
            f"{saved:,} of {reached:,}; run {TRAIN} again to train the rest"
        )
    say(f"{run.last}: missing or damaged; restored from {newest.name}")
    with run.lock():
        _restore(run, newest)


def _restore(run: Run, checkpoint: Path) -> None:
    with replacing(run.last) as partial:
        shutil.copyfile(checkpoint, partial)
