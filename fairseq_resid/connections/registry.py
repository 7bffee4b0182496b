"""The table of --residual names: what each structure is made of, and how a choice is resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..ops import BACKENDS
from .base import ResidualConnection
from .options import Option, Options, invalid
from .place import Place, layer_norm
from .stream import ResidualStream

FINAL_NORMS = ("none", "layer")
_STRUCTURES: dict[str, Structure] = {}
_ALIASES: dict[str, str] = {}


def never(_: Any) -> bool:
    """Say no of all options of a structure."""
    return False


def always(_: Any) -> bool:
    """Say yes of all options of a structure."""
    return True


@dataclass(frozen=True)
class Structure:
    """What --residual names.

    formula, source: one line each, y as a function of x and F, and who published it: help texts and tables show them
    family: the heading in the README's table under which the structure is listed
    use_when: one or two sentences for the gallery, docs/structures.md
    options: a frozen dataclass; connection: the class of its sites; stream: the class that ends a stack
    has_kernel: whether `combine_fused` computes the structure with these options
    final_norm: whether its source ends a stack in a norm, the default of --final-norm; None: the end of the stream
                holds a norm, and the flag has no meaning
    needs_every_layer: whether with these options no layer may be left out
    is_profiled: whether with these options a first pass through the model sets start values: `profile`
    """

    options: type[Options]
    connection: type[ResidualConnection]
    stream: type[ResidualStream] = ResidualStream
    has_kernel: Callable[[Any], bool] = never
    final_norm: bool | None = False
    needs_every_layer: Callable[[Any], bool] = never
    is_profiled: Callable[[Any], bool] = never
    formula: str = ""
    source: str = ""
    family: str = "Other"
    use_when: str = ""


def register(name: str, structure: Structure, *aliases: str) -> None:
    """Enter a structure in the table under `name`, and under each alias.

    Raises: ValueError if a name is taken.
    """
    for key in (name, *aliases):
        if key in _STRUCTURES or key in _ALIASES:
            raise ValueError(f"residual {key!r} is registered twice")
    _STRUCTURES[name] = structure
    _ALIASES.update(dict.fromkeys(aliases, name))


def names() -> list[str]:
    """Return every name that --residual takes, aliases last."""
    return [*_STRUCTURES, *_ALIASES]


def own_names() -> list[str]:
    """Return the structures of this package without aliases, in the order of registration."""
    package = __package__ or ""
    return [name for name, made in _STRUCTURES.items() if made.connection.__module__.startswith(f"{package}.")]


def aliases(name: str) -> list[str]:
    """Return the other names of a structure."""
    return [alias for alias, target in _ALIASES.items() if target == name]


def canonical(name: str) -> str:
    """Return the name of a structure, given it or its alias.

    Raises: InvalidOption naming what is allowed.
    """
    name = _ALIASES.get(name, name)
    if name not in _STRUCTURES:
        raise invalid("residual", name, f"choose one of {', '.join(names())}")
    return name


def structure(name: str) -> Structure:
    """Return a structure by its name or alias.

    Raises: InvalidOption naming what is allowed.
    """
    return _STRUCTURES[canonical(name)]


def options(name: str) -> dict[str, Option]:
    """Return the options of a structure by name."""
    return structure(name).options.known()


def all_options() -> dict[str, dict[str, Option]]:
    """Return every option of any structure: {option: {structure: what it is there}}."""
    everything: dict[str, dict[str, Option]] = {}
    for name in _STRUCTURES:
        for option in options(name).values():
            everything.setdefault(option.name, {})[name] = option
    return everything


def resolve(name: str, given: dict[str, Any]) -> Options:
    """Return the options of a structure: what was given, else the defaults; None counts as not given.

    Raises: InvalidOption if an option is given that the structure does not have, or a value that is not allowed.
    """
    known = options(name)
    chosen = {option: value for option, value in given.items() if value is not None}
    for option, value in chosen.items():
        if option not in known:
            has = ", ".join("--" + key.replace("_", "-") for key in known) or "none"
            raise invalid(option, value, f"not an option of the residual {canonical(name)}, whose options are: {has}")
    return structure(name).options(**chosen)


def resolve_final_norm(name: str, given: str | None) -> bool:
    """Return whether a norm ends the stacks of a structure: as given, else as its source has it.

    Raises: InvalidOption for another value, or if the structure's own end holds a norm.
    """
    default = structure(name).final_norm
    if given is None:
        return bool(default)
    if default is None:
        raise invalid("final_norm", given, f"the residual {canonical(name)} ends a stack in a norm of its own")
    if given not in FINAL_NORMS:
        raise invalid("final_norm", given, f"choose one of {', '.join(FINAL_NORMS)}")
    return given == "layer"


def check_backend(name: str, chosen: Options, backend: str) -> None:
    """Check a --residual-backend for a structure with these options.

    Raises: InvalidOption for an unknown one, or for triton if there is no kernel.
    """
    if backend not in BACKENDS:
        raise invalid("residual_backend", backend, f"choose one of {', '.join(BACKENDS)}")
    if backend == "triton" and not structure(name).has_kernel(chosen):
        shown = {"residual": canonical(name), **chosen.values()}
        said = " ".join(f"--{option.replace('_', '-')} {value}" for option, value in shown.items())
        raise invalid("residual_backend", backend, f"there is no kernel for {said}; use auto or eager")


def draws_branches(name: str) -> bool:
    """Return whether a structure draws the start values of the sublayers itself."""
    return structure(name).connection.init_branch is not ResidualConnection.init_branch


def needs_every_layer(name: str, chosen: Options) -> bool:
    """Return whether no layer of a structure with these options may be left out."""
    return structure(name).needs_every_layer(chosen)


Profiler = Callable[[Sequence[ResidualConnection]], AbstractContextManager[None]]


def profiler(name: str, chosen: Options) -> Profiler | None:
    """Return the `ResidualConnection.profile` of a structure, if with these options a first pass sets start values."""
    made = structure(name)
    return made.connection.profile if made.is_profiled(chosen) else None


def has_wide_state(name: str) -> bool:
    """Return whether a structure's state has more than C channels."""
    made = structure(name)
    return made.connection.enter is not ResidualConnection.enter or made.stream is not ResidualStream


def build(
    name: str, place: Place | int, dropout: nn.Module | float = 0.0, *, backend: str = "auto", **given: Any
) -> ResidualConnection:
    """Return a new connection by its --residual name.

    >>> site = build("rskip_ln", 512, dropout=0.1, skip_lambda=3)
    >>> y = site(x, sublayer(site.branch_input(x)))

    Args:   place: where it stands; the number of channels alone, if the structure does not depend on it
            dropout: of the sublayer's output, a module or a probability
            backend: auto, the fused kernels wherever they serve; eager; triton, an error in training if they do not
    Raises: InvalidOption for an unknown name, an option the structure does not have, or a value that is not allowed,
            of `dropout` too; ValueError if the structure needs a Place.
    """
    made, chosen = structure(name), resolve(name, given)
    check_backend(name, chosen, backend)
    at = place if isinstance(place, Place) else Place(place)
    if not made.has_kernel(chosen) or at.norm is not layer_norm:  # the kernels' norm
        backend = "eager"
    site = made.connection(at, chosen, dropout, backend, {"residual": canonical(name), **chosen.values()})
    if not has_wide_state(name) and not site.most_width:
        site.most_width = site.dim
    return site


def build_stream(name: str, place: Place, final_norm: bool, **given: Any) -> ResidualStream | None:
    """Return what ends a stack of a structure; None if there is nothing to do.

    Raises: as `build`.
    """
    made = structure(name)
    if made.stream is ResidualStream and not final_norm:
        return None
    return made.stream(place, resolve(name, given), final_norm)
