"""The registry of --residual names: the parts of each structure, and the resolution of names and options."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...ops import BACKENDS, settled
from .base import ResidualConnection
from .folding import Fold
from .norms import layer_norm
from .options import InvalidOption, Option, Options, flag
from .place import Place
from .stream import ResidualStream

FINAL_NORMS = ("none", "layer")
_STRUCTURES: dict[str, Structure] = {}
_ALIASES: dict[str, str] = {}


def for_no_options(_: Any) -> bool:
    """Return False. It is used for a property that a structure never has, whatever its options."""
    return False


def nothing(_: Any) -> None:
    """Return None. It is used for a structure that equals another one with none of its options."""


def for_all_options(_: Any) -> bool:
    """Return True. It is used for a property that a structure always has, whatever its options."""
    return True


@dataclass(frozen=True)
class Structure:
    """A residual structure, which --residual selects by name.

    formula, source: y as a function of x and F, and the publication; one line each, for help texts and tables
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
    same_as: Callable[[Any], str | None] = nothing
    has_norm: Callable[[Any], bool] = for_all_options
    final_norm: bool | None = False
    needs_every_layer: Callable[[Any], bool] = for_no_options
    is_profiled: Callable[[Any], bool] = for_no_options
    folds: Callable[[Any], Fold] | None = None
    formula: str = ""
    source: str = ""
    family: str = "Other"
    use_when: str = ""


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


def name_advice(name: str) -> str:
    """Return the advice for an unknown name: the similar names, or else all names."""
    near = difflib.get_close_matches(name, names(), n=4)
    return (
        f"no such structure; similar ones: {', '.join(near)}" if near else f"choose one of {', '.join(sorted(names()))}"
    )


def canonical(name: str) -> str:
    """Return the name of a structure, given its name or an alias.

    Raises: InvalidOption listing the allowed names.
    """
    name = _ALIASES.get(name, name)
    if name not in _STRUCTURES:
        raise InvalidOption("name", name, name_advice(name))
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


def function_differences(one: Any, other: Any) -> tuple[str, str] | None:
    """Return the flags in which the structures of two models differ, from the models' configs.

    None means that the structures compute the same with the same weights, or that one of the models has another
    architecture or an unknown structure. The names and shapes of the weights do not tell: those of post_ln fit
    deep_norm. Options that only set initial values are ignored.
    """
    flags = [_function_flags(cfg) for cfg in (one, other)]
    differing = [name for name in flags[0] if name in flags[1] and flags[0][name] != flags[1][name]]
    if not differing or _simplest(one, flags[0]) == _simplest(other, flags[1]):
        return None
    first, second = (" ".join(f"{name} {each[name]}" for name in differing) for each in flags)
    return first, second


def _function_flags(cfg: Any) -> dict[str, Any]:
    """Return the flags on which the structure of a model with given weights depends; none if it has no known structure.

    The config may be that of an older checkpoint, or of stock `transformer`, whose structure is pre_ln or post_ln.
    """
    if not hasattr(cfg, "residual") and not hasattr(cfg, "encoder_normalize_before"):
        return {}
    stock = "pre_ln" if getattr(cfg, "encoder_normalize_before", False) else "post_ln"
    name = getattr(cfg, "residual", None) or stock
    if name not in names():
        return {}
    residual = canonical(name)
    known = options(residual)
    resolved = resolve(residual, {option: getattr(cfg, option, None) for option in known})
    chosen = {"residual": residual}
    if uses_norm(residual, resolved, getattr(cfg, "final_norm", None) == "layer"):
        chosen["norm"] = getattr(cfg, "norm", None) or "layer"
    chosen |= {option: value for option, value in resolved.values().items() if not known[option].is_initial}
    return {flag(option): value for option, value in chosen.items()}


def _simplest(cfg: Any, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of a model, or those of the structure without options that computes the same (same_as)."""
    name = flags.get("--residual")
    if name is None:
        return flags
    made = structure(name)
    same = made.same_as(resolve(name, {option: getattr(cfg, option, None) for option in made.options.known()}))
    return flags if same is None else {"--residual": same, "--norm": flags["--norm"]}


def resolve_final_norm(name: str, given: str | None) -> bool:
    """Return whether the stacks of a structure end with a norm: the given choice or, if None, that of its source.

    Raises: InvalidOption for an unknown name or value, or if the structure's stream contains a norm.
    """
    default = structure(name).final_norm
    if given is None:
        return bool(default)
    if default is None:
        allowed = f"the residual {canonical(name)} ends a stack with its own norm; omit this option"
        raise InvalidOption("final_norm", given, allowed)
    if given not in FINAL_NORMS:
        raise InvalidOption("final_norm", given, f"choose one of {', '.join(FINAL_NORMS)}")
    return given == "layer"


def uses_norm(name: str, chosen: Options, final_norm: bool) -> bool:
    """Return whether the norm of the place has an effect on a structure with these options."""
    return final_norm or structure(name).has_norm(chosen)


def resolve_backend(given: str) -> str:
    """Return the backend for a value of --residual-backend; those of version 1.0 mean eager.

    Raises: InvalidOption for an unknown value.
    """
    backend = settled(given)
    if backend not in BACKENDS:
        raise InvalidOption("backend", given, f"choose one of {', '.join(BACKENDS)}")
    return backend


def draws_branches(name: str) -> bool:
    """Return whether a structure initialises the weights of the sublayers itself."""
    return structure(name).connection.init_branch is not ResidualConnection.init_branch


def needs_every_layer(name: str, chosen: Options) -> bool:
    """Return whether a structure with these options needs every layer, so that LayerDrop is unsupported."""
    return structure(name).needs_every_layer(chosen)


Profiler = Callable[[Sequence[ResidualConnection]], AbstractContextManager[None]]


def profiler(name: str, chosen: Options) -> Profiler | None:
    """Return a structure's `profile` method, or None if no first pass sets initial values with these options."""
    made = structure(name)
    return made.connection.profile if made.is_profiled(chosen) else None


def has_wide_state(name: str) -> bool:
    """Return whether a structure's state has more than C channels between layers."""
    made = structure(name)
    return made.connection.enter is not ResidualConnection.enter or made.stream is not ResidualStream


def build(
    name: str, place: Place | int, dropout: nn.Module | float = 0.0, *, backend: str = "eager", **given: Any
) -> ResidualConnection:
    """Return a new connection by its --residual name.

    >>> site = build("rskip_ln", 512, dropout=0.1, skip_lambda=3)
    >>> y = site(x, sublayer(site.branch_input(x)))

    Args:   place: the connection's place in the model, or the number of channels if nothing else is needed
            dropout: of the sublayer's output, a module or a probability
            backend: eager, or compile: torch.compile is applied to the formula
    Raises: InvalidOption for an unknown name, an option that the structure does not have, or an invalid value,
            including `dropout`; ValueError if the structure needs a Place.
    """
    made, chosen = structure(name), resolve(name, given)
    at = place if isinstance(place, Place) else Place(place)
    described = {"residual": canonical(name), **chosen.values()}
    site = made.connection(at, chosen, dropout, resolve_backend(backend), described)
    if not has_wide_state(name) and not site.most_width:
        site.most_width = site.dim
    return site


def build_stream(name: str, place: Place, final_norm: bool, **given: Any) -> ResidualStream | None:
    """Return the module that ends a stack of a structure, or None if it would do nothing.

    Raises: as `build`.
    """
    made = structure(name)
    if made.stream is ResidualStream and not final_norm:
        return None
    return made.stream(place, resolve(name, given), final_norm)


def build_stack(
    name: str,
    dim: int,
    layers: int,
    dropout: nn.Module | float = 0.0,
    *,
    kinds: Sequence[str] = ("self_attn", "ffn"),
    stack: str = "encoder",
    depths: Mapping[str, int] | None = None,
    norm: Callable[[int], nn.Module] = layer_norm,
    final_norm: str | None = None,
    backend: str = "eager",
    **given: Any,
) -> tuple[list[list[ResidualConnection]], nn.Module]:
    """Return the connections of a whole stack, in a list for each layer, and the module that ends the stack.

    >>> sites, end = build_stack("sas", 512, layers=6, dropout=0.1)
    >>> attention_site, feed_forward_site = sites[0]

    Args:   kinds: of the sublayers of a layer, in order
            depths: number of layers of the model's other stacks, for example {"encoder": 6} for its decoder
            norm: one of NORMS, or another function that returns a norm for a given number of channels
            final_norm: "layer" or "none"; by default, that of the structure's source
    Raises: as `build`.
    """
    depths = {**(depths or {}), stack: layers}
    sites = layers * len(kinds)
    made = []
    for layer in range(layers):
        first = layer * len(kinds)
        places = [
            Place(dim, stack, kind, layer, number + 1 == len(kinds), first + number, sites, depths, norm)
            for number, kind in enumerate(kinds)
        ]
        made.append([build(name, place, dropout, backend=backend, **given) for place in places])
        for site in made[-1][1:]:
            site.share(made[-1][0])
    end = Place(dim, stack, "stream", layers, True, sites, sites, depths, norm)
    stream = build_stream(name, end, resolve_final_norm(name, final_norm), **given)
    return made, nn.Identity() if stream is None else stream
