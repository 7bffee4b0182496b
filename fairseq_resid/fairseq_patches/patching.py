"""Two ways to patch fairseq: wrap one of its functions, or replace a module in only one of its files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any


def wrap(owner: Any) -> Callable[[Callable[..., Any]], None]:
    """Decorator: replace the function of the same name of a module or class, which becomes the first argument."""

    def decorate(function: Callable[..., Any]) -> None:
        original = getattr(owner, function.__name__)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, function.__name__, patched)

    return decorate


class StandIn(ModuleType):
    """`original` with these functions replaced. All other attributes are looked up in it when they are used."""

    def __init__(self, original: Any, **functions: Callable[..., Any]) -> None:
        super().__init__(getattr(original, "__name__", type(original).__name__))
        vars(self).update(functions)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
