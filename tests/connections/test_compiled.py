"""Structures compiled by torch.compile with Inductor have the values and gradients of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.stacks import C, inputs, make, moved_stack
from support.structures import each, over, spec

pytestmark = [
    pytest.mark.once,  # needs only torch
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
]
SHAPES = [(4, 2), (5, 3), (7, 3)]
# A structure with each kind of state: x, x with gates, n streams, and values that accumulate.
IN_EVERY_RUN = [("rskip_ln", None), ("sas", None), ("hyper", True), ("attn_residual", None)]
STREAMS = [
    pytest.param(*case, marks=pytest.mark.long, id=f"{case[0]}-{case[1]}") for case in [("frac", True), ("mhc", True)]
]


def check(call: Callable[..., Tensor], module: nn.Module, arguments: Any, dynamic: bool | None) -> None:
    """Compare a compiled function of a module with the function itself, for inputs of several shapes."""
    torch.compiler.reset()  # the limit of recompilations counts those of earlier tests in this process
    compiled = torch.compile(call, dynamic=dynamic)
    for shape in SHAPES:
        given = [argument.requires_grad_() for argument in arguments(shape)]
        weight = torch.randn_like(call(*given))
        sources = [*given, *module.parameters()]
        found, expected = (
            (y, *torch.autograd.grad((y * weight).sum(), sources, allow_unused=True, materialize_grads=True))
            for y in (made(*given) for made in (compiled, call))
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@over("name dynamic", [*IN_EVERY_RUN, *STREAMS])
def test_compiled_site_equals_eager(name: str, dynamic: bool | None) -> None:
    """`combine` alone may have a symbolic number of channels."""
    site = make(name, {}, dtype=torch.float32)

    def arguments(shape: tuple[int, ...]) -> list[Tensor]:
        x, f = inputs(*shape, C, dtype=torch.float32)
        return [spec(name).state(site, x).detach(), f]

    check(site.combine, site, arguments, dynamic)


@pytest.mark.long
@each
def test_compiled_stack_equals_eager(name: str) -> None:
    stack = moved_stack(name, "encoder", depth=1).float()
    check(stack, stack, lambda shape: inputs(*shape, C, dtype=torch.float32)[:1], None)
