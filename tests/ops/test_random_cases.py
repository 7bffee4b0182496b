"""Random shapes, options, layouts and dtypes compared with the formulas in fp64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_resid import connections
from support import stacks, structures
from support.structures import spec

pytestmark = pytest.mark.once


ALL_DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = ["contiguous", "transposed", "sliced", "strided", "expanded"]
SAMPLES, MORE_SAMPLES, ROUNDINGS, SLACK = 2, 30, 4, 8
# Operations that sum values or products. Their error is roughly proportional to the sum of the magnitudes.
SUMS = {torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.sum, torch.ops.aten.mean}


class Roundings(TorchDispatchMode):
    """Perturbs the result of every operation at random, by up to a few rounding errors of a dtype."""

    def __init__(self, dtype: torch.dtype, generator: torch.Generator) -> None:
        super().__init__()
        limits = torch.finfo(dtype)
        self.eps, self.least = ROUNDINGS / 2 * limits.eps, limits.smallest_normal * limits.eps / 4
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(one.alias_info is not None for one in func._schema.returns) or not isinstance(result, Tensor):
            return result
        if not result.is_floating_point():
            return result
        size = result
        if func.overloadpacket in SUMS:
            size = func(*[one.abs() if isinstance(one, Tensor) else one for one in args], **(kwargs or {}))
        noise = torch.empty_like(result).uniform_(-1, 1, generator=self.generator)
        noise.add_(noise.sign())  # large enough to have an effect in fp64
        return noise.mul_(size.abs().mul_(self.eps).add_(self.least)).add_(result)


def draw_options(choose: random.Random, name: str) -> dict[str, Any]:
    """Return random valid values for all options of a structure."""
    most = 3 if spec(name).is_slow else 5
    while True:
        drawn: dict[str, Any] = {}
        for option in connections.options(name).values():
            if option.choices:
                drawn[option.name] = choose.choice(option.choices)
            elif option.type is int:
                drawn[option.name] = choose.randint(int(option.least or 1), int(min(option.most or most, most)))
            elif option.above is not None:
                drawn[option.name] = choose.uniform(0.05, min(option.most or 4.0, 4.0))
            else:
                drawn[option.name] = choose.uniform(-3, 3)
        try:
            connections.resolve(name, drawn)
            return drawn
        except connections.InvalidOption:
            pass  # options that cannot be combined


def draw_input(choose: random.Random, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    """Return random numbers of a random magnitude in the given memory layout."""
    generator = torch.Generator().manual_seed(choose.getrandbits(30))
    scale = choose.choice([0.01, 1.0, 1.0, 30.0])

    def normal(*sizes: int) -> Tensor:
        return (scale * torch.randn(sizes, generator=generator, dtype=torch.float64)).to(dtype)

    if layout == "transposed" and len(shape) > 1:
        return normal(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return normal(*shape[:-1], 2 * shape[-1] + 1)[..., 1 : 1 + shape[-1]]
    if layout == "strided":
        return normal(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "expanded" and len(shape) > 1:
        return normal(*shape[1:]).expand(shape)
    return normal(*shape)


@dataclass
class Case:
    """A random call: the function, its inputs, and which of them require a gradient."""

    name: str
    options: dict[str, Any]
    dtype: torch.dtype
    layout: str
    sources: dict[str, Tensor]
    ours: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    parameters: dict[str, Tensor]

    def __str__(self) -> str:
        shapes = {key: list(value.shape) for key, value in self.sources.items()}
        return f"{self.name} {self.options} {self.dtype} {self.layout} {shapes}"

    def results(self, function: Callable[..., Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return y and its gradients, computed from inputs with the same memory layout."""
        sources = self.sources
        if dtype != self.dtype:
            wide = {key: value.detach().to(dtype) for key, value in sources.items()}
            sources = {key: value.requires_grad_(sources[key].requires_grad) for key, value in wide.items()}
        parameters = {key: value.detach().to(dtype).requires_grad_() for key, value in self.parameters.items()}
        y = function(parameters, *sources.values())
        wanted = {key: value for key, value in (sources | parameters).items() if value.requires_grad}
        if not y.requires_grad:
            return {"y": y.detach()}
        weight = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view(y.shape).to(self.dtype).to(dtype)
        gradients = torch.autograd.grad(y, list(wanted.values()), weight, allow_unused=True, materialize_grads=True)
        return {"y": y.detach()} | {f"d{key}": value for key, value in zip(wanted, gradients, strict=True)}


def move_parameters(module: nn.Module, seed: int) -> None:
    """Perturb all parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += (0.3 * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)


class Both(nn.Module):
    """The output of a site and the input to its branch."""

    def __init__(self, site: connections.ResidualConnection) -> None:
        super().__init__()
        self.site = site

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.cat([self.site(x, f), self.site.branch_input(x)], dim=-1)


class Formula(nn.Module):
    """A stack computed by its formula instead of its modules."""

    def __init__(self, stack: stacks.Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = stacks.whole(self.stack, x)
        return whole


def drawn_masks(site: Any, x: Tensor, f: Tensor, seed: int) -> list[Tensor]:
    """Return the factors by which the dropouts of a site multiply x and f with this seed."""
    torch.manual_seed(seed)
    mask = site.dropout(torch.ones_like(f.detach()))
    other = site.shortcut_dropout(torch.ones_like(x.detach())) if hasattr(site, "shortcut_dropout") else torch.ones(())
    return [other.double(), mask.double()]


def draw_case(number: int) -> Case:
    choose = random.Random(number)
    torch.manual_seed(number)
    name = choose.choice(structures.NAMES)
    options = draw_options(choose, name)
    dtype = choose.choice(ALL_DTYPES)
    layout = choose.choice(LAYOUTS)
    dim = choose.choice([1, 2, 3, choose.randint(4, 40), choose.randint(4, 40), choose.randint(41, 300)])
    sizes = [0, 1, 1, 2, 3, 5, 7]
    rows: tuple[int, ...] = choose.choice([(), (choose.randint(0, 70),), (choose.choice(sizes), choose.choice(sizes))])
    if spec(name).formula is None:
        return draw_stack(choose, name, options, dtype, layout, dim, rows)
    dim = spec(name).width(dim, connections.resolve(name, options))
    place = replace(stacks.HERE, dim=dim)
    p = choose.choice([0.0, 0.1, 0.5])
    site = connections.build(name, place, p, **options)
    move_parameters(site.train(choose.random() < 0.7).to(dtype), number)
    x, f = (draw_input(choose, (*rows, dim), dtype, layout) for _ in range(2))
    x_learns, f_learns = choose.choice([(True, True), (True, False), (False, True), (False, False)])
    x, f = x.requires_grad_(x_learns), f.requires_grad_(f_learns)
    masks = drawn_masks(site, x, f, number)
    both = Both(site)

    def ours(parameters: dict[str, Tensor], x: Tensor, f: Tensor) -> Tensor:
        torch.manual_seed(number)
        return torch.func.functional_call(both, {f"site.{key}": value for key, value in parameters.items()}, (x, f))

    def reference(parameters: dict[str, Tensor], x: Tensor, f: Tensor) -> Tensor:
        y = stacks.reference(name, options, parameters, x * masks[0], f * masks[1])
        return torch.cat([y, stacks.seen(name, options, parameters, x)], dim=-1)

    return Case(name, options, dtype, layout, {"x": x, "F": f}, ours, reference, dict(site.named_parameters()))


def draw_stack(
    choose: random.Random,
    name: str,
    options: dict[str, Any],
    dtype: torch.dtype,
    layout: str,
    dim: int,
    rows: tuple[int, ...],
) -> Case:
    """Return a random case of a whole stack, with one layer if its formula is slow."""
    stack, depth = choose.choice(["encoder", "decoder"]), 1 if spec(name).is_slow else choose.randint(1, 3)
    made = stacks.Stack(name, stack, {"encoder": 4, "decoder": 3, stack: depth}, dim, **options)
    move_parameters(made.to(dtype), choose.getrandbits(30))
    again = Formula(made)

    def ours(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(made, parameters, (x,))

    def reference(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(again, {f"stack.{key}": value for key, value in parameters.items()}, (x,))

    x = draw_input(choose, (*rows, dim), dtype, layout).requires_grad_(choose.random() < 0.7)
    return Case(name, options, dtype, layout, {"x": x}, ours, reference, dict(made.named_parameters()))


def largest(values: Tensor) -> float:
    return values.abs().max().item() if values.numel() else 0.0


def perturbed(case: Case, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the results of the formula in fp64 with a random error in every operation."""
    with Roundings(case.dtype, generator):
        return case.results(case.reference, torch.float64)


def relative_errors(
    found: dict[str, Tensor], exact: dict[str, Tensor], moved: list[dict[str, Tensor]], dtype: torch.dtype
) -> dict[str, float]:
    """Return the largest error of every result, divided by the expected rounding error."""
    limits, shares = torch.finfo(dtype), {}
    for key, right in exact.items():
        if largest(right) > limits.max / 2:
            continue
        noise = math.sqrt(sum(largest(one[key] - right) ** 2 for one in moved) / len(moved))
        one_rounding = limits.eps * largest(right) + limits.smallest_normal * limits.eps
        error = largest(found[key].double() - right)
        # The sum is 0 where subnormal numbers are: a library built with -ffast-math turns them off in its process.
        shares[key] = error / (noise + one_rounding) if error else 0.0
    return shares


def check_case(number: int) -> dict[str, float]:
    """Compare one case; return its errors relative to the expected rounding errors."""
    case = draw_case(number)
    found = case.results(case.ours, case.dtype)
    exact = case.results(case.reference, torch.float64)
    for key, right in exact.items():
        assert found[key].dtype == case.dtype and found[key].shape == right.shape, f"{number}: {case}: {key}"
    # LN of one or two numbers is about 0 or ±1 and its derivative is near 0. The computed gradient is therefore mostly
    # rounding error, amplified by at most the steepest slope of LN. On a CPU, torch increases this error, because it
    # keeps the statistics of 16-bit input in 16 bits.
    is_flat = next(iter(case.sources.values())).size(-1) <= 2
    steepest, samples = (connections.core.norms.EPS**-0.5, 8) if is_flat else (1.0, SAMPLES)
    generator, moved = torch.Generator().manual_seed(number), []
    for more in (samples, MORE_SAMPLES):  # a few samples can underestimate the noise
        moved += [perturbed(case, generator) for _ in range(more)]
        shares = relative_errors(found, exact, moved, case.dtype)
        shares = {key: share if key == "y" else share / steepest for key, share in shares.items()}
        if all(share <= SLACK for share in shares.values()):
            return shares
    raise AssertionError(f"{number}: {case}: {shares}: must be at most {SLACK}")


def check_cases(numbers: range) -> None:
    shares = [share for number in numbers for share in check_case(number).values()]
    assert len(shares) > len(numbers)


@pytest.mark.structures
def test_random_cases_equal_fp64_formula() -> None:
    check_cases(range(200))


@pytest.mark.long
@pytest.mark.parametrize("first", range(200, 9_000, 2_200))
def test_many_random_cases_equal_fp64_formula(first: int) -> None:
    check_cases(range(first, first + 2_200))
