"""The registry of --residual names: the parts of each structure, and its options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from . import docstrings
from .base import ResidualConnection
from .folding import Fold
from .options import InvalidOption, Option, Options
from .stream import ResidualStream

Profiler = Callable[[Sequence[ResidualConnection]], AbstractContextManager[None]]
_STRUCTURES: dict[str, Structure] = {}
_ALIASES: dict[str, str] = {}


def for_no_options(_: Any) -> bool:
    """Return False. It is used for a property that a structure never has, whatever its options."""
    return False


def for_all_options(_: Any) -> bool:
    """Return True. It is used for a property that a structure always has, whatever its options."""
    return True


@dataclass(frozen=True)
class Structure:
    """A residual structure, which --residual selects by name.

    formula, source: y as a function of x and F, and the publication, for help texts and tables. The default is the
    field Formula of the docstring of `connection`, and its field Source up to the first comma, semicolon or colon
    family: the heading in the README's table under which the structure is listed
    use_when: one or two sentences for the gallery, docs/structures.md
    options: a frozen dataclass; connection: the class of its sites; stream: the class that ends a stack
    same_as: returns the name of a structure without options that is the same function of the same weights, or None
    has_norm: whether a site or its stream has a norm with these options; without it, --norm only changes the final norm
    final_norm: default of --final-norm: whether a stack ends with a norm in the source paper; None if the stream
    contains a norm, so that the flag does not apply
    needs_every_layer: whether LayerDrop is unsupported with these options
    is_profiled: whether these options need a first pass through the model, which sets initial values (`profile`)
    folds: returns a site as a layer of an inference engine, or raises CannotFold (folding.py); None if no such layer
    can express the structure
    """

    options: type[Options]
    connection: type[ResidualConnection]
    stream: type[ResidualStream] = ResidualStream
    same_as: Callable[[Any], str | None] = lambda _: None
    has_norm: Callable[[Any], bool] = for_all_options
    final_norm: bool | None = False
    needs_every_layer: Callable[[Any], bool] = for_no_options
    is_profiled: Callable[[Any], bool] = for_no_options
    folds: Callable[[Any], Fold] | None = None
    formula: str = ""
    source: str = ""
    family: str = "Other"
    use_when: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "formula", self.formula or self.fields.get("Formula", ""))
        object.__setattr__(self, "source", self.source or re.split("[,;:] ", self.fields.get("Source", ""))[0])

    @property
    def summary(self) -> str:
        """What a site does, in one or two sentences: the beginning of the docstring of `connection`."""
        return docstrings.summary(self.connection)

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the docstring of `connection`: Formula, Where, Source, Start, State, Dtype."""
        return docstrings.fields(self.connection)


def register(name: str, structure: Structure, *aliases: str) -> None:
    """Register a structure under `name` and each alias.

    Raises: ValueError if a name is taken.
    """
    for key in (name, *aliases):
        if key in _STRUCTURES or key in _ALIASES:
            raise ValueError(f"residual {key!r}: already registered; a name can be registered only once")
    _STRUCTURES[name] = structure
    _ALIASES.update(dict.fromkeys(aliases, name))


def names() -> list[str]:
    """Return every name that --residual accepts, in alphabetical order, aliases last."""
    return [*sorted(_STRUCTURES), *sorted(_ALIASES)]


def own_names() -> list[str]:
    """Return the names of this package's structures, without aliases, in alphabetical order."""
    package = __name__.removesuffix("core.registry")
    return [name for name, made in sorted(_STRUCTURES.items()) if made.connection.__module__.startswith(package)]


def aliases(name: str) -> list[str]:
    """Return the other names of a structure."""
    return [alias for alias, target in _ALIASES.items() if target == name]


def canonical(name: str) -> str:
    """Return the name of a structure, given its name or an alias.

    Raises: InvalidOption listing the allowed names.
    """
    name = _ALIASES.get(name, name)
    if name not in _STRUCTURES:
        near = ", ".join(difflib.get_close_matches(name, names(), n=4))
        advice = f"no such structure; similar ones: {near}" if near else f"choose one of {', '.join(sorted(names()))}"
        raise InvalidOption("name", name, advice)
    return name


def structure(name: str) -> Structure:
    """Return a structure by its name or alias.

    Raises: InvalidOption listing the allowed names.
    """
    return _STRUCTURES[canonical(name)]


def options(name: str) -> dict[str, Option]:
    """Return the options of a structure by name."""
    return structure(name).options.known()


def all_options() -> dict[str, dict[str, Option]]:
    """Return the options of all structures as {option name: {structure name: the structure's Option}}."""
    everything: dict[str, dict[str, Option]] = {}
    for name in sorted(_STRUCTURES):
        for option in options(name).values():
            everything.setdefault(option.name, {})[name] = option
    return everything


def resolve(name: str, given: dict[str, Any]) -> Options:
    """Return the options of a structure: the given values, and defaults for the others; None means not set.

    Raises: InvalidOption for an unknown name, an option that the structure does not have, or an invalid value.
    """
    known = options(name)
    chosen = {option: value for option, value in given.items() if value is not None}
    for option, value in chosen.items():
        if option not in known:
            allowed = f"not an option of the residual {canonical(name)}, whose options are: {{others}}"
            raise InvalidOption(option, value, allowed, dict.fromkeys(known))
    return structure(name).options(**chosen)


def uses_norm(name: str, chosen: Options, final_norm: bool) -> bool:
    """Return whether the norm of the place has an effect on a structure with these options."""
    return final_norm or structure(name).has_norm(chosen)


def draws_branches(name: str) -> bool:
    """Return whether a structure initialises the weights of the sublayers itself."""
    return structure(name).connection.init_branch is not ResidualConnection.init_branch


def needs_every_layer(name: str, chosen: Options) -> bool:
    """Return whether a structure with these options needs every layer, so that LayerDrop is unsupported."""
    return structure(name).needs_every_layer(chosen)


def profiler(name: str, chosen: Options) -> Profiler | None:
    """Return a structure's `profile` method, or None if no first pass sets initial values with these options."""
    made = structure(name)
    return made.connection.profile if made.is_profiled(chosen) else None


def has_wide_state(name: str) -> bool:
    """Return whether a structure's state has more than C channels between layers."""
    made = structure(name)
    return made.connection.enter is not ResidualConnection.enter or made.stream is not ResidualStream
