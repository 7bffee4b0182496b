"""Residual connections as torch modules, one structure per --residual name; usable in any model, without fairseq.

>>> from fairseq_resid import connections
>>> site = connections.build("sas", 512, dropout=0.1)
>>> y = site(x, sublayer(site.branch_input(x)))
"""

from . import (
    attention,
    b2t,
    deep_norm,
    dense,
    dropout_shortcut,
    expanded,
    gated,
    hyper,
    linear_shortcut,
    plain,
    pre_norm,
    recursive,
    resi_dual,
    rezero,
    self_adaptive,
    weighted,
)
from .base import ResidualConnection, components
from .options import InvalidOption, Option, Options, option
from .place import Place
from .registry import (
    FINAL_NORMS,
    Profiler,
    Structure,
    all_options,
    build,
    build_stream,
    canonical,
    check_backend,
    draws_branches,
    has_wide_state,
    names,
    needs_every_layer,
    options,
    profiler,
    register,
    resolve,
    resolve_final_norm,
    structure,
)
from .stream import ResidualStream

__all__ = [
    "FINAL_NORMS",
    "InvalidOption",
    "Option",
    "Options",
    "Place",
    "Profiler",
    "ResidualConnection",
    "ResidualStream",
    "Structure",
    "all_options",
    "attention",
    "b2t",
    "build",
    "build_stream",
    "canonical",
    "check_backend",
    "components",
    "deep_norm",
    "dense",
    "draws_branches",
    "dropout_shortcut",
    "expanded",
    "gated",
    "has_wide_state",
    "hyper",
    "linear_shortcut",
    "names",
    "needs_every_layer",
    "option",
    "options",
    "plain",
    "pre_norm",
    "profiler",
    "recursive",
    "register",
    "resi_dual",
    "resolve",
    "resolve_final_norm",
    "rezero",
    "self_adaptive",
    "structure",
    "weighted",
]
