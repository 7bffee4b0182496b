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

from .translation import ResidualTransformerModel  # noqa: E402

# As fairseq's registry has them.
IMAGE_MODELS = ("resnet_resid", "all_convolutional")
OWN_MODELS = ("transformer_resid", *IMAGE_MODELS)

__all__ = ["IMAGE_MODELS", "OWN_MODELS", "ResidualTransformerModel"]
