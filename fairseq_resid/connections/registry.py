"""The table of --residual names: which class each is, which options it has, and how a choice is resolved."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from ..ops import BACKENDS
from .base import ResidualConnection, invalid

_CLASSES: dict[str, type[ResidualConnection]] = {}
_ALIASES: dict[str, str] = {}
Connection = TypeVar("Connection", bound=type[ResidualConnection])


@dataclass(frozen=True)
class Option:
    """An option of a variant: a keyword-only argument of its class, annotated as `Annotated[TYPE, "help"]`."""

    name: str
    type: type
    default: Any
    choices: tuple[str, ...]
    help: str


def register(name: str, *aliases: str) -> Callable[[Connection], Connection]:
    """Enter a class in the table under `name`, and under each alias."""

    def enter(cls: Connection) -> Connection:
        for key in (name, *aliases):
            if key in _CLASSES or key in _ALIASES:
                raise ValueError(f"residual {key!r} is registered twice")
        _CLASSES[name] = cls
        _ALIASES.update(dict.fromkeys(aliases, name))
        return cls

    return enter


def names() -> list[str]:
    """Return every name that --residual takes, aliases last."""
    return [*_CLASSES, *_ALIASES]


def canonical(name: str) -> str:
    """Return the name of a variant, given it or its alias.

    Raises: ValueError naming what is allowed.
    """
    name = _ALIASES.get(name, name)
    if name not in _CLASSES:
        raise invalid("residual", name, f"choose one of {', '.join(names())}")
    return name


def options(name: str) -> dict[str, Option]:
    """Return the options of a variant, read off its constructor."""
    constructor = _CLASSES[canonical(name)].__init__
    hints = typing.get_type_hints(constructor, include_extras=True)
    found = {}
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kind, text = typing.get_args(hints[parameter.name])
            literal = typing.get_origin(kind) is typing.Literal
            found[parameter.name] = Option(
                name=parameter.name,
                type=str if literal else kind,
                default=parameter.default,
                choices=typing.get_args(kind) if literal else (),
                help=text,
            )
    return found


def all_options() -> dict[str, dict[str, Option]]:
    """Return every option of any variant: {option: {variant: what it is there}}."""
    found: dict[str, dict[str, Option]] = {}
    for name in _CLASSES:
        for option in options(name).values():
            found.setdefault(option.name, {})[name] = option
    return found


def resolve(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every option of a variant: what was given, else its default; None counts as not given.

    Raises: ValueError if an option is given that the variant does not have, or a value of the wrong type.
    """
    name = canonical(name)
    known = options(name)
    for option, value in given.items():
        if value is not None and option not in known:
            has = ", ".join("--" + key.replace("_", "-") for key in known) or "none"
            raise invalid(option, value, f"not an option of the residual {name}, whose options are: {has}")
    values = {}
    for option, spec in known.items():
        value = given.get(option)
        if value is None:
            value = spec.default
        elif spec.choices and value not in spec.choices:
            raise invalid(option, value, f"{name} takes one of {', '.join(spec.choices)}")
        elif spec.type is not str:
            value = _number(option, value, spec.type, name)
        values[option] = value
    return values


def _number(option: str, value: Any, kind: type, name: str) -> int | float:
    """Return an option's value as the number it must be; the command line gives every number as a float."""
    kinds = {int: "an integer", float: "a number"}
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise invalid(option, value, f"{name} takes {kinds[kind]}") from None
    if kind is int and not number.is_integer():
        raise invalid(option, value, f"{name} takes {kinds[kind]}")
    return kind(number)


def build(
    name: str, dim: int, dropout: nn.Module | float = 0.0, *, backend: str = "auto", **given: Any
) -> ResidualConnection:
    """Return a new connection by its --residual name.

    >>> site = build("rskip_ln", 512, dropout=0.1, skip_lambda=3)
    >>> y = site(x, sublayer(site.branch_input(x)))

    Args:   backend: auto, the fused kernels wherever they serve; eager; triton, an error in training if they do not
    Raises: ValueError for an unknown name, an option the variant does not have, or a value out of range.
    """
    if backend not in BACKENDS:
        raise invalid("residual_backend", backend, f"choose one of {', '.join(BACKENDS)}")
    values = resolve(name, given)
    connection = _CLASSES[canonical(name)](dim, dropout, **values)
    connection.described = {"residual": canonical(name), **values}
    if backend == "triton" and not connection.has_kernel:
        shown = " ".join(f"--{option.replace('_', '-')} {value}" for option, value in connection.described.items())
        raise invalid("residual_backend", backend, f"there is no kernel for {shown}; use auto or eager")
    connection.backend = backend
    return connection
