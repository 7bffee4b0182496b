"""Residual connections as torch modules, one class per --residual name; usable in any model, without fairseq.

>>> from fairseq_resid import connections
>>> site = connections.build("sas", 512, dropout=0.1)
>>> y = site(x, sublayer(site.branch_input(x)))
"""

from . import dropout_shortcut, expanded, gated, linear_shortcut, plain, recursive, self_adaptive, weighted
from .base import InvalidOption, ResidualConnection
from .registry import Option, all_options, build, canonical, names, options, register, resolve

__all__ = [
    "InvalidOption",
    "Option",
    "ResidualConnection",
    "all_options",
    "build",
    "canonical",
    "dropout_shortcut",
    "expanded",
    "gated",
    "linear_shortcut",
    "names",
    "options",
    "plain",
    "recursive",
    "register",
    "resolve",
    "self_adaptive",
    "weighted",
]
