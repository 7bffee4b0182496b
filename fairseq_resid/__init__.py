"""Learnable and recursive residual structures for Transformer translation models, as a fairseq plugin.

Where fairseq is installed, importing the package (which --user-dir does) bridges fairseq and registers the models;
where it is not, `fairseq_resid.connections` and `fairseq_resid.ops` work by themselves.
"""

from importlib.util import find_spec

from .version import __version__

__all__ = ["__version__"]

if find_spec("fairseq") is not None:
    from . import compat

    compat.apply()
    from . import architectures

    __all__ += ["architectures", "compat"]
