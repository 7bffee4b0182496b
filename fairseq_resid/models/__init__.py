"""What fairseq loads of --user-dir fairseq_resid: importing it bridges fairseq and registers models and architectures.

Both fairseqs import every file of this folder themselves; whoever uses our models in Python imports this package. A
file here must not be named like a registered model: fairseq would take it for that model's arguments.
"""

from importlib import import_module
from pkgutil import iter_modules

from .. import fairseq_patches as compat

compat.apply()
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

from ..data.images import folder as images  # noqa: E402
from .translation import ResidualTransformerModel  # noqa: E402

# Of every model, as fairseq's registry names it, the task that trains it.
TASKS = {"transformer_resid": "translation", "resnet_resid": images.TASK, "all_convolutional": images.TASK}
OWN_MODELS = tuple(TASKS)

__all__ = ["OWN_MODELS", "TASKS", "ResidualTransformerModel"]
