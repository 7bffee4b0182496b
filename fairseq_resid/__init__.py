"""Learnable and recursive residual structures for Transformer translation models, as a fairseq plugin.

Importing the package changes nothing and loads nothing. `fairseq_resid.connections` and `fairseq_resid.ops` need torch
alone; `fairseq_resid.models` is what fairseq loads of a --user-dir: it bridges fairseq and registers the models.
"""

from __future__ import annotations

import sys

from .version import __version__

__all__ = ["__version__"]


class _Path(list[str]):
    """The package's folders. Who asks whether a folder is among them is fairseq, and gets the models registered.

    fairseq imports USER_DIR/models/*.py only if the package is not imported yet. Else it asks `user_dir in
    package.__path__` (fairseq.utils.import_user_module), logs one line, and knows none of our architectures.
    """

    def __contains__(self, folder: object) -> bool:
        found = super().__contains__(folder)
        if found and "fairseq" in sys.modules:
            from .tasks import register

            register()
        return found


__path__ = _Path(__path__)
