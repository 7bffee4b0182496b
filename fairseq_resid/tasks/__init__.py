"""The fairseq tasks and criteria that --user-dir loads.

fairseq itself imports every file in this folder before those in models/; in-process callers use `register`. No file
here may have the name of a registered task.
"""

from importlib import import_module
from pkgutil import iter_modules


def register() -> None:
    """Patch fairseq and register our models, tasks and criteria."""
    import_module(f"{__package__.rpartition('.')[0]}.models")
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
