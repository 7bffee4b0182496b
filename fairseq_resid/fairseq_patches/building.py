"""Refuse checkpoints of other dictionaries, or whose config describes a model much larger than their weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from . import dictionaries
from .errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Loading:
    """The checkpoint whose model is being built; state: None before it is read; is_whole: not one of several shards."""

    path: str
    state: dict[str, Any] | None
    is_whole: bool


_loading: ContextVar[_Loading | None] = ContextVar("loading", default=None)

# fairseq allocates tied weights separately before it ties them, and upgrade_state_dict may add parameters.
TIMES, MORE_PARAMETERS = 2, 100
# Allowance for tensors that are not saved, such as positional embedding tables: 200 MB in fp32.
MORE_NUMBERS = 50_000_000


@contextlib.contextmanager
def loading(path: str, state: dict[str, Any] | None, is_whole: bool) -> Iterator[None]:
    """Check the models that are built in this context.

    state: the checkpoint that they are built for, replaced when a checkpoint is read in this context
    is_whole: whether the checkpoint contains all weights, which limit the size of the model
    """
    token = _loading.set(_Loading(path, state, is_whole))
    try:
        yield
    finally:
        _loading.reset(token)


def was_read(path: str, state: dict[str, Any]) -> None:
    """Set the checkpoint that the next model is built for."""
    if now := _loading.get():
        _loading.set(replace(now, path=str(path), state=state))


class _Bound:
    """The largest model that these weights justify."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = len(weights)
        self.numbers = sum(value.numel() for value in weights.values())

    def check(self, numbers: int, parameters: int) -> None:
        """Raise UserError if the model is larger."""
        if numbers > TIMES * self.numbers + MORE_NUMBERS or parameters > TIMES * self.weights + MORE_PARAMETERS:
            raise UserError(
                f"its config describes a model of at least {numbers:,} numbers in {parameters:,} parameters, but "
                f"its weights have {self.numbers:,} numbers in {self.weights:,}"
            )

    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        """Check every parameter as it is registered, before its memory is written.

        Raises: UserError at the first parameter beyond the limit.
        """
        numbers = parameters = 0

        def count(_: object, __: str, parameter: torch.Tensor | None) -> None:
            nonlocal numbers, parameters
            numbers, parameters = numbers + (0 if parameter is None else parameter.numel()), parameters + 1
            self.check(numbers, parameters)

        hook = register_module_parameter_registration_hook(count)
        try:
            yield
        finally:
            hook.remove()


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def _held(model: torch.nn.Module) -> int:
    """Count the elements of all tensors in a model; fairseq 0.12.2 keeps positional embeddings as plain attributes."""
    held = [vars(part) | part._parameters | part._buffers for part in model.modules()]
    return sum(value.numel() for part in held for value in part.values() if isinstance(value, torch.Tensor))


def check_models() -> None:
    """Refuse a checkpoint of other dictionaries, or whose config describes a model far larger than its weights.

    The latter is refused before that memory is allocated: the model is first built on torch's meta device, whose
    tensors have a shape but no data.
    """
    from fairseq import models

    original = models.build_model

    @functools.wraps(original)
    def build_model(cfg, task, *args, **kwargs):  # type: ignore[no-untyped-def]
        now = _loading.get()
        if now is None or now.state is None:
            return original(cfg, task, *args, **kwargs)
        dictionaries.check(now.path, now.state, dictionaries.of_task(task))
        if not now.is_whole:
            return original(cfg, task, *args, **kwargs)
        bound = _Bound(now.state["model"])
        try:
            with bound.holds(), _silently(), torch.device("meta"):
                model = original(copy.deepcopy(cfg), task, *args, **kwargs)
            bound.check(_held(model), len(list(model.parameters())))
        except UserError:
            raise
        except Exception as error:
            # If a third-party model cannot be built on the meta device, only its parameters are limited.
            logger.debug("not built on the meta device: %s", error)
        with bound.holds():
            return original(cfg, task, *args, **kwargs)

    models.build_model = build_model
