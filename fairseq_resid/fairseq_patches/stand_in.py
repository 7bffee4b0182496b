"""A proxy for a module or an object that replaces some of its functions, for use in individual files of fairseq."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """`original` with these functions replaced. All other attributes are looked up in it when they are used."""

    def __init__(self, original: Any, **functions: Callable[..., Any]) -> None:
        super().__init__(getattr(original, "__name__", type(original).__name__))
        vars(self).update(functions)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
