"""Sites and whole stacks of a structure, and their reference formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.connections import Place
from fairseq_resid.connections.core.norms import layer_norm as default_norm
from support.formulas import layer_norm
from support.structures import spec

C = 8
KINDS = {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}
# The place of a single site: the last of six sublayers of a decoder.
HERE = Place(C, "decoder", "ffn", 1, True, 5, 6, {"encoder": 3, "decoder": 2})


def build(name: str, dim: int = C, dropout: Any = 0.0, **options: Any) -> Any:
    return connections.build(name, replace(HERE, dim=dim), dropout, **options)


def move(module: Any, noise: float = 0.3) -> Any:
    """Add noise to every parameter of a module."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn_like(parameter)
    return module


def make(
    name: str,
    options: dict[str, Any],
    dim: int = C,
    dtype: torch.dtype = torch.float64,
    dropout: Any = 0.0,
    noise: float = 0.3,
) -> Any:
    """Return a site in eval mode, all of whose parameters differ from their initial values."""
    torch.manual_seed(1)
    return move(build(name, dim, dropout, **options).to(dtype).eval(), noise)


def inputs(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def parameters(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters(remove_duplicate=False))


def reference(name: str, options: dict[str, Any], p: dict[str, Tensor], x: Tensor, f: Tensor, at: Place = HERE) -> Any:
    """Return y, computed by the formula in the structure's test file."""
    formula = spec(name).formula
    assert formula is not None
    return formula(x, f, p, connections.resolve(name, options), at)


def seen(name: str, options: dict[str, Any], p: dict[str, Tensor], x: Tensor, at: Place = HERE) -> Any:
    """Return the input to the branch, computed by the formula in the structure's test file."""
    return spec(name).branch_input(x, p, connections.resolve(name, options), at)


def places(stack: str, depths: dict[str, int], dim: int = C, norm: Callable[[int], Any] = default_norm) -> list[Place]:
    """Return the places of a stack's sites in order."""
    kinds = KINDS[stack]
    sites = depths[stack] * len(kinds)
    return [
        Place(dim, stack, kind, layer, kind == "ffn", layer * len(kinds) + number, sites, depths, norm)
        for layer in range(depths[stack])
        for number, kind in enumerate(kinds)
    ]


class Stack(nn.Module):
    """A stack whose sublayers are linear maps with tanh."""

    def __init__(
        self,
        name: str,
        stack: str,
        depths: dict[str, int],
        dim: int = C,
        norm: Callable[[int], Any] = default_norm,
        **options: Any,
    ) -> None:
        super().__init__()
        at = places(stack, depths, dim, norm)
        self.name, self.kinds, self.options = name, len(KINDS[stack]), connections.resolve(name, options)
        self.sites = nn.ModuleList(connections.build(name, place, **options) for place in at)
        for index, site in enumerate(self.sites):
            if index % self.kinds:
                site.share(self.sites[index - index % self.kinds])
        self.branches = nn.ModuleList(nn.Linear(dim, dim) for _ in at)
        end = Place(dim, stack, "stream", depths[stack], True, len(at), len(at), depths, norm)
        self.end = connections.build_stream(name, end, connections.resolve_final_norm(name, None), **options)

    def forward(self, x: Tensor) -> Tensor:
        for site, branch in zip(self.sites, self.branches, strict=True):
            x = site.enter(x)
            x = site(x, torch.tanh(branch(site.branch_input(x))))
        return x if self.end is None else self.end(x)


def moved_stack(name: str, stack: str = "decoder", depth: int = 3, **options: Any) -> Stack:
    """Return a stack in fp64, all of whose parameters differ from their initial values."""
    torch.manual_seed(1)
    made: Stack = move(Stack(name, stack, {"encoder": 4, "decoder": 3, stack: depth}, **options).double().eval())
    return made


def branch(stack: Any, index: int, seen: Tensor) -> Tensor:
    """Return the output of a sublayer."""
    return torch.tanh(seen @ stack.branches[index].weight.T + stack.branches[index].bias)


def branches(stack: Any) -> list[Any]:
    """Return the branch of every site, and the weight and bias of its norm."""
    made = [lambda seen, i=i: branch(stack, i, seen) for i in range(len(stack.sites))]
    return [(f, site.norm.weight, site.norm.bias) for f, site in zip(made, stack.sites, strict=True)]


def by_layer(stack: Any, sites: list[Any]) -> list[list[Any]]:
    return [sites[start : start + stack.kinds] for start in range(0, len(sites), stack.kinds)]


def whole(stack: Any, x: Tensor) -> Tensor:
    """Compute a whole stack by the formulas in its test file: `stack`, or `formula` and `branch_input` of each site."""
    given = spec(stack.name)
    if given.stack is not None:
        return given.stack(stack, x)
    assert given.formula is not None
    for index, site in enumerate(stack.sites):
        p = parameters(site)
        f = branch(stack, index, given.branch_input(x, p, stack.options, site.place))
        x = given.formula(x, f, p, stack.options, site.place)
    return x if stack.end is None else layer_norm(x, stack.end.weight, stack.end.bias)
