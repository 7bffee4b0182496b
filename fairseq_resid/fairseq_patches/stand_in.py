"""A proxy for a module that replaces some of its functions, for use in individual files of fairseq."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """`module` with these functions replaced. All other attributes are looked up in the module when they are used."""

    def __init__(self, module: ModuleType, **functions: Callable[..., Any]) -> None:
        super().__init__(module.__name__)
        vars(self).update(functions)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
