"""Residual connections as torch modules for any model, with or without fairseq. Each --residual name selects one.

>>> from fairseq_resid import connections
>>> site = connections.build("sas", 512, dropout=0.1)
>>> y = site(x, sublayer(site.branch_input(x)))

Every module in this folder is imported, so that its calls to `register` take effect. docs/adding-a-structure.md shows
how to add a structure, here or in another package.
"""

import importlib
import pkgutil
from importlib.metadata import entry_points

from .core.base import ResidualConnection, components, is_positional, sites
from .core.folding import CannotFold, Fold
from .core.norms import NORMS
from .core.options import InvalidOption, Option, Options, option
from .core.place import Place
from .core.registry import (
    FINAL_NORMS,
    Profiler,
    Structure,
    aliases,
    all_options,
    build,
    build_stack,
    build_stream,
    canonical,
    draws_branches,
    function_differences,
    has_wide_state,
    names,
    needs_every_layer,
    options,
    own_names,
    profiler,
    register,
    resolve,
    resolve_backend,
    resolve_final_norm,
    structure,
    uses_norm,
)
from .core.stream import ResidualStream

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

ENTRY_POINTS = "fairseq_resid.structures"  # group of the entry points with which other packages register structures


def import_structures() -> None:
    """Import every module of this folder except `_*`, in alphabetical order, and then load the entry points.

    Raises: ImportError naming the entry point that cannot be loaded.
    """
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if not name.startswith("_"):
            importlib.import_module(f"{__name__}.{name}")
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            point.load()
        except Exception as error:
            raise ImportError(f"entry point {point.name} = {point.value} ({ENTRY_POINTS}): {error}") from error


import_structures()
