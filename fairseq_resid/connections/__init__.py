"""Residual connections as torch modules for any model, with or without fairseq. Each --residual name selects one.

>>> from fairseq_resid import connections
>>> site = connections.build("sas", 512, dropout=0.1)
>>> y = site(x, sublayer(site.branch_input(x)))

The file of --residual NAME is NAME.py; an alias is in the file of its structure. `core` is the machinery of all
structures, and no structure is in it. Every file of this folder is imported, so that its call to `register` takes
effect. docs/contributing.md shows how to add a structure, here or in another package.
"""

import importlib
import pkgutil
from importlib.metadata import entry_points

from . import core
from .core import *  # noqa: F403

__all__ = core.__all__

ENTRY_POINTS = "fairseq_resid.structures"  # group of the entry points with which other packages register structures


def import_structures() -> None:
    """Import every file of this folder in alphabetical order, and then load the entry points.

    Raises: ImportError naming the entry point that cannot be loaded.
    """
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):  # noqa: F405
        importlib.import_module(f"{__name__}.{name}")
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            point.load()
        except Exception as error:
            raise ImportError(f"entry point {point.name} = {point.value} ({ENTRY_POINTS}): {error}") from error


import_structures()
