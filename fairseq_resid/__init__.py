"""Learnable and recursive residual structures for Transformer translation models, as a fairseq plugin.

Importing the package changes nothing and loads nothing. `fairseq_resid.connections` and `fairseq_resid.ops` need only
torch. fairseq loads `fairseq_resid.models` from --user-dir, which connects them to fairseq and registers the models.
"""

from __future__ import annotations

import sys

from .version import __version__

__all__ = ["__version__"]


class _Path(list[str]):
    """Package path whose membership test registers the models: fairseq evaluates `user_dir in package.__path__`.

    fairseq imports USER_DIR/models/*.py only if the package has not been imported yet. Otherwise it only evaluates
    this test (fairseq.utils.import_user_module) and logs one line, so our architectures would be unknown.
    """

    def __contains__(self, folder: object) -> bool:
        found = super().__contains__(folder)
        if found and "fairseq" in sys.modules:
            from .tasks import register

            register()
        return found


__path__ = _Path(__path__)
