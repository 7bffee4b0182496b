"""Task, data and number of updates of a model, from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import read_lines
from .run import Run


def setting(section: Any, name: str) -> Any:
    """Return a setting from a section of a checkpoint's cfg, which is a dict or an argparse namespace."""
    return section.get(name) if isinstance(section, dict) else getattr(section, name, None)


def task_of(cfg: Any) -> str | None:
    """Return the name of the fairseq task in a checkpoint's cfg, or None if there is none."""
    task = setting(cfg, "task")
    return setting(task, "_name") or setting(task, "task")


def direction_of(state: dict[str, Any]) -> tuple[str, str] | None:
    """Return source and target language of a checkpoint's translation task; None if they are not recorded."""
    task = setting(state.get("cfg"), "task") or state.get("args")
    source, target = setting(task, "source_lang"), setting(task, "target_lang")
    return (source, target) if source and target else None


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
    """Return the data folder that a checkpoint was trained on.

    A relative path is first tried from the current folder, then from the folder in which training was started, that is,
    the folder from which the checkpoint's --save-dir leads to this run.
    Raises: ValueError if the checkpoint does not name a data folder, or the folder no longer exists.
    """
    cfg = state.get("cfg") or {}
    recorded = setting(cfg.get("task"), "data") or setting(state.get("args"), "data")
    if not recorded:
        raise ValueError(f"{run.path}: the checkpoint does not name a data folder; give it with --data")
    data = Path(str(recorded).split(":")[0])  # fairseq accepts shards of a training set as A:B
    save_dir = Path(str(setting(cfg.get("checkpoint"), "save_dir")))
    here = run.path.resolve()
    candidates = [data]
    if not save_dir.is_absolute() and here.parts[-len(save_dir.parts) :] == save_dir.parts:
        candidates.append(Path(*here.parts[: -len(save_dir.parts)]) / data)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise ValueError(f"{run.path}: trained on {data}: no such data folder; give its new path with --data")


def check_same_dictionaries(run: Run, state: dict[str, Any], data: Path) -> None:
    """Check that the dictionaries of a data folder equal those that a checkpoint was trained with.

    If the folder that it was trained on no longer exists, nothing can be compared.
    Raises: OSError or ValueError naming the dictionary that is missing or differs.
    """
    try:
        trained_on = find_data(run, state)
    except ValueError:
        return
    for own in sorted(trained_on.glob("dict.*.txt")):
        file = data / own.name
        if read_lines(file) != read_lines(own):
            raise ValueError(f"{file}: differs from {own}, which {run.path} was trained with")
