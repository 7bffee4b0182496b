"""--residual-backend: the formula of a residual site in eager PyTorch or compiled by torch.compile."""

from __future__ import annotations

import functools
import logging
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

BACKENDS = ("eager", "compile")
# Names of version 1.0, whose kernels have been removed.
FORMER = ("auto", "triton")
# Variants of a formula in one process: shapes, dtypes, training and inference of each kind of site. torch's own limit
# is 8.
MOST_VARIANTS = 64

logger = logging.getLogger(__name__)


class Site(Protocol):
    """A residual connection, as far as it concerns the backend."""

    dropout: nn.Module
    described: dict[str, Any]

    def combine(self, state: Tensor, f: Tensor) -> Tensor: ...


@functools.cache
def say(text: str) -> None:
    """Log a message once per process."""
    logger.info(text)


def settled(backend: str) -> str:
    """Return the backend for a recorded value; those of version 1.0 are eager."""
    if backend == "triton":
        say("residual backend: triton means eager since version 1.1, which has no kernels")
    return "eager" if backend in FORMER else backend


def missing_compiler() -> str:
    """Return a phrase that says that torch.compile finds no C++ compiler; an empty string if it finds one."""
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "torch.compile needs a C++ compiler, such as g++, and finds none"
    return ""


def is_traced() -> bool:
    """Return whether torch.func transforms the operations, or forward-mode AD differentiates them."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_recorded(x: Tensor) -> bool:
    """Return whether PyTorch must see the single operations on x: while compiling, exporting or transforming them."""
    return type(x) not in (Tensor, nn.Parameter) or torch.compiler.is_compiling() or is_traced()


def _formula(site: Site, state: Tensor, f_out: Tensor) -> Tensor:
    return site.combine(state, site.dropout(f_out))


def _formula_after_dropout(site: Site, state: Tensor, f: Tensor) -> Tensor:
    return site.combine(state, f)


@functools.cache
def _compiled(includes_dropout: bool) -> Any:
    """Return a compiled function of a site, its state and f_out.

    The parameters of a site are inputs of the graph, so that all sites of one kind share it.
    """
    config = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, MOST_VARIANTS)
    return torch.compile(_formula if includes_dropout else _formula_after_dropout, fullgraph=True)


def _refusals() -> tuple[type[Exception], ...]:
    """Return what torch.compile(fullgraph=True) raises for a formula that it cannot compile, or compiles no more.

    This is a function because importing torch._dynamo takes a second.
    """
    errors = torch._dynamo.exc
    return errors.Unsupported, getattr(errors, "FailOnRecompileLimitHit", errors.Unsupported)  # not in torch 2.5


_failed: set[str] = set()


def compiled_formula(site: Site, state: Tensor, f_out: Tensor) -> Tensor:
    """Return combine(state, dropout(f_out)) of a site, compiled by torch.compile for the shapes that occur.

    A dropout module whose class does not say `compiles`, other than nn.Dropout, is called before. If torch refuses a
    formula, as it does after MOST_VARIANTS variants, the structure runs eagerly from then on, and a line is logged.
    """
    name = site.described.get("residual", type(site).__name__)
    if name in _failed or is_recorded(state):
        return _formula(site, state, f_out)
    inside = getattr(site.dropout, "compiles", type(site.dropout) is nn.Dropout)
    try:
        return _compiled(inside)(site, state, f_out if inside else site.dropout(f_out))  # type: ignore[no-any-return]
    except _refusals() as error:
        _failed.add(name)
        reason = str(error).strip().split("\n")[0]
        logger.warning("residual backend: torch.compile refuses %s, which now runs eagerly: %s", name, reason)
        return _formula(site, state, f_out)
