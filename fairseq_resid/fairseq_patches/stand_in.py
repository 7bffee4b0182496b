"""A module in which some functions are others, for one file of fairseq that calls them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """`module` with these functions replaced; what is asked of it otherwise is the module's own at that time."""

    def __init__(self, module: ModuleType, **functions: Callable[..., Any]) -> None:
        super().__init__(module.__name__)
        vars(self).update(functions)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
