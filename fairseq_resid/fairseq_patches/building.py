"""Refuse to build a model for a checkpoint of other dictionaries."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from . import dictionaries

# The path and the content of the checkpoint whose model is being built; the content is None before it is read.
_loading: ContextVar[tuple[str, dict[str, Any] | None] | None] = ContextVar("loading", default=None)


@contextlib.contextmanager
def loading(path: str, state: dict[str, Any] | None) -> Iterator[None]:
    """Check the models that are built in this context against this checkpoint, or the one that is read in it."""
    token = _loading.set((path, state))
    try:
        yield
    finally:
        _loading.reset(token)


def was_read(path: str, state: dict[str, Any]) -> None:
    """Set the checkpoint that the next model is built for."""
    if _loading.get():
        _loading.set((str(path), state))


def check_models() -> None:
    """Refuse a checkpoint of other dictionaries, with which every word would have the embedding of another one."""
    from fairseq import models

    original = models.build_model

    @functools.wraps(original)
    def build_model(cfg, task, *args, **kwargs):  # type: ignore[no-untyped-def]
        path, state = _loading.get() or ("", None)
        if state is not None:
            dictionaries.check(path, state, dictionaries.of_task(task))
        return original(cfg, task, *args, **kwargs)

    models.build_model = build_model
