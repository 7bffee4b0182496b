"""The machinery of all structures: places, options, base classes, the registry, and the construction of sites."""

from .base import ResidualConnection, components, is_positional, sites
from .building import FINAL_NORMS, build, build_stack, build_stream, resolve_backend, resolve_final_norm
from .differences import function_differences
from .folding import CannotFold, Fold
from .norms import NORMS
from .options import InvalidOption, Option, Options, option
from .place import Place
from .registry import (
    Profiler,
    Structure,
    aliases,
    all_options,
    canonical,
    draws_branches,
    has_wide_state,
    names,
    needs_every_layer,
    options,
    own_names,
    profiler,
    register,
    resolve,
    structure,
    uses_norm,
)
from .stream import ResidualStream

__all__ = [
    "FINAL_NORMS",
    "NORMS",
    "CannotFold",
    "Fold",
    "InvalidOption",
    "Option",
    "Options",
    "Place",
    "Profiler",
    "ResidualConnection",
    "ResidualStream",
    "Structure",
    "aliases",
    "all_options",
    "build",
    "build_stack",
    "build_stream",
    "canonical",
    "components",
    "draws_branches",
    "function_differences",
    "has_wide_state",
    "is_positional",
    "names",
    "needs_every_layer",
    "option",
    "options",
    "own_names",
    "profiler",
    "register",
    "resolve",
    "resolve_backend",
    "resolve_final_norm",
    "sites",
    "structure",
    "uses_norm",
]
