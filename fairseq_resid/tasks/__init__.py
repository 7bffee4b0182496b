"""Kinds of task: one object for each (kinds.py), and what fairseq loads of --user-dir beside the models.

Both fairseqs import every file of this folder themselves, before those of models/; `register` does it for whoever works
in process. A file here must not be named like a registered task.
"""

from importlib import import_module
from pkgutil import iter_modules


def register() -> None:
    """Patch fairseq and register models, tasks and criteria with it."""
    import_module(f"{__package__.rpartition('.')[0]}.models")
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
