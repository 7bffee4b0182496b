"""What a checkpoint says of the training of its model: task, data, updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .run import Run


def setting(section: Any, name: str) -> Any:
    """Return one setting of a checkpoint's cfg, whose sections are dicts or argparse namespaces."""
    return section.get(name) if isinstance(section, dict) else getattr(section, name, None)


def task_of(cfg: Any) -> str | None:
    """Return the name of fairseq's task that a checkpoint's cfg states; None if it states none."""
    task = setting(cfg, "task")
    return setting(task, "_name") or setting(task, "task")


def num_updates(state: dict[str, Any]) -> int | None:
    """Return the number of updates a checkpoint was trained for, None if it does not say."""
    history = state.get("optimizer_history")
    return history[-1].get("num_updates") if history else None


def share_splits(one: str, other: str) -> bool:
    """Say whether two subsets have a split in common; train+valid is two splits."""
    return bool({*one.split("+")} & {*other.split("+")})


def is_trained_on(cfg: Any, subset: str) -> bool:
    """Say whether a subset, by its name, is part of what a checkpoint's cfg says that the model was trained on."""
    return share_splits(subset, str(setting(setting(cfg, "dataset"), "train_subset") or "train"))


def find_data(run: Run, state: dict[str, Any]) -> Path:
    """Return the data folder that a checkpoint was trained on.

    A relative name is first tried from the current folder, then from the folder that the training was started in: there
    the checkpoint's --save-dir leads to this run.
    Raises: ValueError if it is not there any more.
    """
    cfg = state.get("cfg") or {}
    recorded = setting(cfg.get("task"), "data") or setting(state.get("args"), "data")
    if not recorded:
        raise ValueError(f"{run.path}: its checkpoints do not say their data folder: name it with --data")
    data = Path(str(recorded).split(":")[0])  # fairseq takes shards of a training set as A:B
    save_dir = Path(str(setting(cfg.get("checkpoint"), "save_dir")))
    here = run.path.resolve()
    candidates = [data]
    if not save_dir.is_absolute() and here.parts[-len(save_dir.parts) :] == save_dir.parts:
        candidates.append(Path(*here.parts[: -len(save_dir.parts)]) / data)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise ValueError(f"{run.path}: was trained on {data}, which is not there: name its data folder with --data")
