"""The options of a structure: a frozen dataclass that validates itself and describes each option for a command line."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FP32_MOST = 3.4028234663852886e38  # formulas use option values in fp32
# Parameters of `build` whose flag has a different name.
FLAGS = {"name": "residual", "backend": "residual_backend"}


class InvalidOption(ValueError):
    """Unknown or invalid residual name, option or backend.

    The message contains keyword arguments, as in Python code; `flags` is the same message with command-line flags.

    allowed: a description of the allowed values, in which {others} is replaced with `others`
    others: further options by name; a value of None shows only the name
    """

    def __init__(self, option: str, value: object, allowed: str, others: Mapping[str, object] | None = None) -> None:
        others = others or {}
        keywords = [name if each is None else f"{name}={each!r}" for name, each in others.items()]
        super().__init__(f"{option}={value!r}: {allowed.replace('{others}', ', '.join(keywords) or 'none')}")
        flags = [flag(name) if each is None else f"{flag(name)} {each}" for name, each in others.items()]
        self.flags = f"{flag(option)} {value}: {allowed.replace('{others}', ' '.join(flags) or 'none')}"


def flag(option: str) -> str:
    """Return the flag of an option or a parameter of `build`.

    >>> flag("skip_lambda"), flag("name")
    ('--skip-lambda', '--residual')
    """
    return f"--{FLAGS.get(option, option).replace('_', '-')}"


@dataclass(frozen=True)
class Option:
    """One option: its name, type, default, help and allowed values.

    choices: the allowed values of a string; above, least, most: bounds on a number; `above` is exclusive. Every integer
             needs a `most`, because a structure may build that many modules; a float without one only needs to be
             finite in fp32.
    example: a non-default value, used in tests that train a model
    is_initial: whether the option only sets initial values, so that a trained model no longer depends on it
    """

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    above: float | None = None
    least: float | None = None
    most: float | None = None
    example: float | None = None
    is_initial: bool = False

    @property
    def allowed(self) -> str:
        """Return the allowed values in words."""
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        kind = "an integer" if self.type is int else "a finite number in fp32"
        if self.above == 0:
            return "must be a positive number" + (f" <= {self.most:g}" if self.most is not None else ", finite in fp32")
        least = f" >= {self.least:g}" if self.least is not None else ""
        return f"must be {kind}{least}" + (f" and <= {self.most:g}" if self.most is not None else "")

    @property
    def examples(self) -> tuple[Any, ...]:
        """Return the values to test: all choices of a string, or the example of a number."""
        return self.choices or (() if self.example is None else (self.checked(self.example),))

    def checked(self, value: Any) -> Any:
        """Return a value, possibly a string from a command line, converted to the option's type.

        Raises: InvalidOption naming the option, the value and the allowed values.
        """
        if self.type is str:
            if value not in self.choices:
                raise InvalidOption(self.name, value, self.allowed)
            return value
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidOption(self.name, value, self.allowed) from None
        if (
            not abs(number) <= FP32_MOST  # also true for NaN
            or (self.type is int and not number.is_integer())
            or (self.above is not None and number <= self.above)
            or (self.least is not None and number < self.least)
            or (self.most is not None and number > self.most)
        ):
            raise InvalidOption(self.name, value, self.allowed)
        return self.type(number)


def option(default: Any, help: str, **rules: Any) -> Any:
    """Declare a field of an Options class; `rules` are further fields of Option, such as `choices` or `most`."""
    return dataclasses.field(default=default, metadata={"help": help, **rules})


@dataclass(frozen=True)
class Options:
    """The base class of all options. A structure without options uses it directly.

    A subclass declares its fields with `option`. A field is an int, a float, or a str with choices. It must not have
    the name of a fairseq flag.
    Raises: InvalidOption naming the option, the value and the allowed values.
    """

    @classmethod
    def known(cls) -> dict[str, Option]:
        """Return every option by name."""
        types = typing.get_type_hints(cls)
        return {
            field.name: Option(field.name, types[field.name], field.default, **field.metadata)
            for field in dataclasses.fields(cls)
        }

    def __post_init__(self) -> None:
        for name, known in self.known().items():
            object.__setattr__(self, name, known.checked(getattr(self, name)))

    def check_width(self, dim: int) -> None:
        """Raise InvalidOption if an option does not fit C = dim channels."""

    def values(self) -> dict[str, Any]:
        """Return the value of every option by name, as stored in the config of a checkpoint."""
        return dataclasses.asdict(self)
