"""Direction, data and number of updates of a model, from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..fairseq_patches.dictionaries import check, data_folders, language_pair, languages, of_folder, setting
from .run import Run


def direction_of(state: dict[str, Any], checkpoint: Path, data: Path) -> tuple[str, str] | None:
    """Return the source and target language of a checkpoint's translation task, to be read from a data folder.

    Without -s and -t, the checkpoint does not name them. They are then those of the folder that it was trained on,
    because the languages of `data` may be swapped. None: the direction of `data`
    """
    task = setting(state.get("cfg"), "task") or state.get("args")
    source, target = setting(task, "source_lang"), setting(task, "target_lang")
    if source and target:
        return source, target
    trained = languages(state, checkpoint)
    return trained if trained and trained[::-1] == language_pair(data) else None


def num_updates(state: dict[str, Any]) -> int | None:
    """Return the number of updates of a checkpoint, or None if it is not recorded."""
    history = state.get("optimizer_history")
    return history[-1].get("num_updates") if history else None


def share_splits(one: str, other: str) -> bool:
    """Return whether two subsets share a split; train+valid consists of two splits."""
    return bool({*one.split("+")} & {*other.split("+")})


def is_trained_on(cfg: Any, subset: str) -> bool:
    """Return whether a subset, judged by its name, belongs to the training data in a checkpoint's cfg."""
    return share_splits(subset, str(setting(setting(cfg, "dataset"), "train_subset") or "train"))


def find_data(run: Run, state: dict[str, Any]) -> Path:
    """Return the data folder that a checkpoint was trained on; see `dictionaries.data_folders`.

    Raises: ValueError if the checkpoint does not name a data folder, or the folder no longer exists.
    """
    candidates = data_folders(state, run.path)
    if not candidates:
        raise ValueError(f"{run.path}: the checkpoint does not name a data folder; give it with --data")
    if found := next(filter(Path.is_dir, candidates), None):
        return found
    raise ValueError(f"{run.path}: trained on {candidates[0]}: no such data folder; give its new path with --data")


def check_same_dictionaries(checkpoint: Path, state: dict[str, Any], data: Path) -> None:
    """Check that the dictionaries of a data folder equal those that a checkpoint was trained with.

    Raises: OSError or ValueError naming the dictionary that is missing or differs.
    """
    check(checkpoint, state, of_folder(state, data))
