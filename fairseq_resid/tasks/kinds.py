"""The kinds of task, and how one is found: by fairseq's name of a task, by results, by a measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runs.run import Results
from ..runs.trained_on import task_of
from .classifying import IMAGE_CLASSIFICATION
from .protocol import Task
from .translating import TRANSLATION

# The first is that of tasks of fairseq that are not ours, the last that of results with no score.
TASKS: tuple[Task[Any], ...] = (TRANSLATION, IMAGE_CLASSIFICATION)


def _first(fits: Callable[[Task[Any]], bool], default: Task[Any]) -> Task[Any]:
    return next(filter(fits, TASKS), default)


def of_name(name: str | None) -> Task[Any]:
    """Return the kind of a task as fairseq's --task names it."""
    return _first(lambda task: task.folder.task == name, TASKS[0])


def of_checkpoint(cfg: Any) -> Task[Any]:
    """Return the kind of task that a checkpoint's cfg states."""
    return of_name(task_of(cfg))


def of_results(results: Results) -> Task[Any]:
    """Return the kind of task that results are of."""
    return _first(lambda task: task.has_made(results), TASKS[-1])


def of_example(example: str) -> Task[Any]:
    """Return the kind of task whose examples have this name."""
    return _first(lambda task: task.example == example, TASKS[0])


def of_measure(measure: str) -> Task[Any]:
    """Return the kind of task that a study of this measure compares; NLL alone is taken for that of translation."""
    return _first(lambda task: measure in task.measures, TASKS[0])


def measures() -> list[str]:
    """Return every measure that a study can have."""
    return list(dict.fromkeys(measure for task in TASKS for measure in task.measures))
