"""Residual structures for Transformers: a fairseq plugin for translation, captioning and image classification.

Importing the package changes nothing and loads nothing. `fairseq_resid.connections` and `fairseq_resid.ops` need only
torch. With --user-dir, fairseq imports `fairseq_resid.tasks` and `fairseq_resid.models`, which patch fairseq and
register our tasks, criteria and models.
"""

from __future__ import annotations

import sys

from .version import __version__

__all__ = ["__version__"]


class _Path(list[str]):
    """Package path whose membership test registers our models and tasks: fairseq evaluates `user_dir in __path__`.

    fairseq imports USER_DIR/tasks/*.py and USER_DIR/models/*.py only if the package has not been imported yet.
    Otherwise it only evaluates this test (fairseq.utils.import_user_module) and logs one line, so our tasks and
    architectures would be unknown.
    """

    def __contains__(self, folder: object) -> bool:
        found = super().__contains__(folder)
        if found and "fairseq" in sys.modules:
            from .tasks import register

            register()
        return found


__path__ = _Path(__path__)
