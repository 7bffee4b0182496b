"""The model that a checkpoint's config asks for is about as large as its weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from .errors import UserError

logger = logging.getLogger(__name__)

# The weights of the checkpoint whose model is being built; None while none is being loaded.
_weights: ContextVar[dict[str, Any] | None] = ContextVar("weights", default=None)

# fairseq makes tied weights anew before it ties them, and a file may lack what upgrade_state_dict adds.
TIMES, MORE_PARAMETERS = 2, 100
# Tables of positions and the like, which a file does not hold: 200 MB in fp32.
MORE_NUMBERS = 50_000_000


@contextlib.contextmanager
def loading(weights: dict[str, Any] | None) -> Iterator[None]:
    """Bound the models built meanwhile by these weights, or those of the checkpoint read last; by nothing if None."""
    token = _weights.set(weights)
    try:
        yield
    finally:
        _weights.reset(token)


def was_read(weights: dict[str, Any]) -> None:
    """Say which weights the next model is for."""
    if _weights.get() is not None:
        _weights.set(weights)


class _Bound:
    """What a model may have at most, for one that these weights fill."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = len(weights)
        self.numbers = sum(value.numel() for value in weights.values())

    def check(self, numbers: int, parameters: int) -> None:
        """Raises: UserError for more."""
        if numbers > TIMES * self.numbers + MORE_NUMBERS or parameters > TIMES * self.weights + MORE_PARAMETERS:
            raise UserError(
                f"its config asks for a model of at least {numbers:,} numbers in {parameters:,} parameters, and "
                f"its weights are {self.numbers:,} numbers in {self.weights:,}"
            )

    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        """Stop what builds a model at the first parameter too many: before its numbers are written.

        Raises: UserError.
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
    """Return how many numbers the modules of a model hold; 0.12.2 keeps tables of positions as plain attributes."""
    held = [vars(part) | part._parameters | part._buffers for part in model.modules()]
    return sum(value.numel() for part in held for value in part.values() if isinstance(value, torch.Tensor))


def bound_models() -> None:
    """Refuse a checkpoint whose config asks for a model far larger than its weights, before it takes that memory.

    The model is built first on torch's meta device, whose tensors have a shape and no numbers.
    """
    from fairseq import models

    original = models.build_model

    @functools.wraps(original)
    def build_model(cfg, *args, **kwargs):  # type: ignore[no-untyped-def]
        weights = _weights.get()
        if weights is None:
            return original(cfg, *args, **kwargs)
        bound = _Bound(weights)
        try:
            with bound.holds(), _silently(), torch.device("meta"):
                model = original(copy.deepcopy(cfg), *args, **kwargs)
            bound.check(_held(model), len(list(model.parameters())))
        except UserError:
            raise
        except Exception as error:
            # A model of somebody else's that cannot be built without numbers is bounded by its parameters alone.
            logger.debug("not built on the meta device: %s", error)
        with bound.holds():
            return original(cfg, *args, **kwargs)

    models.build_model = build_model
