"""The list of tasks, and functions that find a task by its fairseq name, results, examples or measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runs.run import Results
from ..runs.trained_on import setting
from .captions import CAPTIONING
from .images import IMAGE_CLASSIFICATION
from .task import Task
from .translation import TRANSLATION

# The first is the default for unknown fairseq tasks, and the last for results without scores.
TASKS: tuple[Task[Any], ...] = (TRANSLATION, CAPTIONING, IMAGE_CLASSIFICATION)


def _first(fits: Callable[[Task[Any]], bool], default: Task[Any]) -> Task[Any]:
    return next(filter(fits, TASKS), default)


def of_name(name: str | None) -> Task[Any]:
    """Return the task for a value of fairseq's --task."""
    return _first(lambda task: task.folder.task == name, TASKS[0])


def of_checkpoint(cfg: Any) -> Task[Any]:
    task = setting(cfg, "task")
    return of_name(setting(task, "_name") or setting(task, "task"))


def of_results(results: Results) -> Task[Any]:
    return _first(lambda task: task.has_made(results), TASKS[-1])


def of_example(example: str) -> Task[Any]:
    """Return the task whose examples have this name."""
    return _first(lambda task: task.words.example == example, TASKS[0])


def of_measure(measure: str) -> Task[Any]:
    """Return the task of a study that compares this measure; for NLL, which every task has, that is translation."""
    return _first(lambda task: measure in task.studied.measures, TASKS[0])


def measures() -> list[str]:
    return list(dict.fromkeys(measure for task in TASKS for measure in task.studied.measures))
