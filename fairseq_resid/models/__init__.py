"""The models that fairseq loads with --user-dir fairseq_resid.

Importing this package patches fairseq and registers the models. Both versions of fairseq import every file in this
folder; Python code that uses our models must import this package. No file here may have the name of a registered model,
because fairseq would read that model's arguments from the file.
"""

from importlib import import_module
from pkgutil import iter_modules

from .. import fairseq_patches

fairseq_patches.apply()
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

from ..data.captions import caption_folder as captions  # noqa: E402
from ..data.images import image_folder as images  # noqa: E402
from .translation import ResidualTransformerModel  # noqa: E402

# The task that trains each model, by the model's name in fairseq's registry.
TASKS = {
    "transformer_resid": "translation",
    "captioning_resid": captions.TASK,
    **dict.fromkeys(("resnet_resid", "all_convolutional", "fully_connected_resid"), images.TASK),
}
OWN_MODELS = tuple(TASKS)

__all__ = ["OWN_MODELS", "TASKS", "ResidualTransformerModel"]
