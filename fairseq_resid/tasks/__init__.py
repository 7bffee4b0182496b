"""What fairseq loads of --user-dir fairseq_resid beside the models: its tasks, and with them their criteria.

Both fairseqs import every file of this folder themselves, before those of models/.
"""

from importlib import import_module
from pkgutil import iter_modules

from .. import models  # noqa: F401  (bridges fairseq)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
