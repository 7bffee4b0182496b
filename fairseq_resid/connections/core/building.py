"""Builds the connections of a model: of one site, of the end of a stack, or of a whole stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ...ops import BACKENDS, settled
from .base import ResidualConnection
from .norms import layer_norm
from .options import InvalidOption
from .place import Place
from .registry import canonical, has_wide_state, resolve, structure
from .stream import ResidualStream

FINAL_NORMS = ("none", "layer")


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


def resolve_backend(given: str) -> str:
    """Return the backend for a value of --residual-backend; those of version 1.0 mean eager.

    Raises: InvalidOption for an unknown value.
    """
    backend = settled(given)
    if backend not in BACKENDS:
        raise InvalidOption("backend", given, f"choose one of {', '.join(BACKENDS)}")
    return backend


def build(
    name: str, place: Place | int, dropout: nn.Module | float = 0.0, *, backend: str = "eager", **given: Any
) -> ResidualConnection:
    """Return a new connection by its --residual name.

    >>> site = build("rskip_ln", 512, dropout=0.1, skip_lambda=3)
    >>> y = site(x, sublayer(site.branch_input(x)))

    Args:   place: the connection's place in the model, or the number of channels if nothing else is needed
            dropout: of the sublayer's output, a module or a probability
            backend: eager, or compile: torch.compile is applied to the formula
    Raises: InvalidOption for an unknown name, an option that the structure does not have, or an invalid value;
            ValueError if the structure needs a Place.
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
