"""Numbers at the edge: limits of the formats, overflow, deep and lopsided models, random shapes and options."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_resid import connections, ops
from fairseq_resid.ops import dispatch, use_kernels
from support import deep, stacks, structures
from support.structures import spec

pytestmark = pytest.mark.once

Fault = Callable[[str, int, str], None]
Steps = list[tuple[float, float, bool, bool]]

FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

# --- numbers up to the limit of a format ---------------------------------------------------------------------------

C = 64
# What connections/README.md promises of the sum that is normed. In fp32 its squares must fit, 8192 of them.
LARGEST_SUM = {torch.float16: 65000.0, torch.bfloat16: 1e17, torch.float32: 1e17}
# Every structure that has a norm somewhere, or no weights that overflow without one.
NORMED: list[tuple[str, dict[str, Any]]] = [
    (name, options)
    for name in structures.NAMES
    for options in [spec(name).deep, *spec(name).limits]
    if options is not None
]


def has_kernel(name: str, options: dict[str, Any]) -> bool:
    return connections.structure(name).has_kernel(connections.resolve(name, options))


def weight_sum(site: Any) -> float:
    """The sum of the weights of a formula's largest sum, S in connections/README.md."""
    return float(spec(site.described["residual"]).weight_sum(site))


def edge_cases(most: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of x and F: drawn, all equal, zero, subnormal, one huge number, alternating, opposite, one of both."""
    drawn = [stacks.inputs(2, C, seed=seed) for seed in (0, 1)]
    tiny = torch.finfo(dtype).smallest_normal / 4
    ones, one = torch.ones(1, C).double(), torch.zeros(1, C).double()
    signs, zero = ones.clone(), torch.zeros(1, C).double()
    one[:, 3], signs[:, ::2] = 1, -1
    units = [(x / x.abs().max(), f / f.abs().max()) for x, f in drawn]
    units += [(ones, ones), (zero, zero), (one, one), (one, -one), (signs, signs), (signs, -signs), (signs, zero)]
    units += [(zero, signs), (ones, zero)]
    rows = [(most * x, most * f) for x, f in units] + [(tiny * x, tiny * f) for x, f in units]
    return torch.cat([x for x, _ in rows]).to(dtype), torch.cat([f for _, f in rows]).to(dtype)


def results(site: Any, end: nn.Module | None, x: Tensor, f: Tensor) -> dict[str, Tensor]:
    """What a site and a stack's end give, and every gradient of their means, with signs that change."""
    x, f = x.clone().requires_grad_(), f.clone().requires_grad_()
    state = spec(site.described["residual"]).state(site, x)
    found = {"seen": site.branch_input(state), "y": site(state, f)}
    found["end"] = end(found["y"]) if end is not None else found["y"]
    named = {"x": x, "F": f, **dict(site.named_parameters())}
    mean = [torch.full_like(value, 1 / value.numel()) for value in found.values()]
    signs = [value * (1 - 2 * (torch.arange(value.numel()).view(value.shape) * 7 % 11 % 2)) for value in mean]
    gradients = torch.autograd.grad(list(found.values()), list(named.values()), signs, allow_unused=True)
    return found | {f"d{name}": value for name, value in zip(named, gradients, strict=True) if value is not None}


def check_limits(name: str, options: dict[str, Any], dtype: torch.dtype, backend: str) -> int:
    torch.manual_seed(1)
    place = replace(stacks.HERE, dim=C)
    site = connections.build(name, place, 0.0, backend=backend, **options).to(dtype)
    end = connections.build_stream(name, place, connections.resolve_final_norm(name, None), **options)
    site, end = site.eval(), end if end is None else end.to(dtype)
    is_whole = (
        backend == "triton" and dtype == torch.float16 and not spec(name).has_gate
    )  # sums in fp32, and y is a norm's
    most = LARGEST_SUM[dtype] / (1.0 if is_whole else weight_sum(site))
    x, f = edge_cases(most, dtype)
    assert backend == "eager" or use_kernels(backend, True, x, f)
    wide = copy.deepcopy(site).double()
    wide.backend = "eager"
    exact = results(wide, copy.deepcopy(end).double() if end is not None else None, x.double(), f.double())
    found = results(site, end, x, f)
    half = torch.finfo(dtype).max / 2
    fits = {key: right.abs() <= half for key, right in exact.items()}
    in_range = all(bool(fits[key].all()) for key in ("dx", "dF"))
    # A gate's logit, a sum of huge numbers of both signs, may come out as anything; so may a row of equal numbers.
    is_compared = not spec(name).has_gate
    spread = x.isclose(x[:, :1]).all(-1).logical_not()
    tolerance = 24 * torch.finfo(dtype).eps
    for key, value in found.items():
        what = f"{name} {options}: {key}"
        if not key.startswith("d"):
            assert value.isfinite().all(), what
            if is_compared:
                torch.testing.assert_close(value[spread].double(), exact[key][spread], rtol=tolerance, atol=tolerance)
        elif in_range or key in ("dx", "dF"):
            assert value[fits[key]].isfinite().all(), what
    return len(x)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("eager", dtype) for dtype in FLOATS),
        *(pytest.param("triton", dtype, marks=pytest.mark.long) for dtype in FLOATS),
    ],
)
@pytest.mark.structures
def test_numbers_up_to_the_limit(backend: str, dtype: str, fault: Fault) -> None:
    chosen = [case for case in NORMED if backend == "eager" or has_kernel(*case)]
    tried = [check_limits(name, options, FLOATS[dtype], backend) for name, options in chosen]
    most = "65000" if dtype == "fp16" else "1e17"
    fault(
        f"{dtype}, {backend}: rows of x and F whose weighted sum is {most}, or subnormal; {len(chosen)} structures",
        sum(tried),
        f"finite; to 24 roundings the fp64 result where no gate reads it; gradients finite where fp64's are in {dtype}",
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [("post_ln", {}), ("xskip_ln", {"skip_lambda": 8, "branch_scale": 3}), ("b2t", {}), ("keel", {})],
)
def test_the_limit_is_as_large_as_it_can_be(name: str, options: dict[str, Any]) -> None:
    """1% above it, the sum of x and F of one sign is beyond fp16."""
    site = stacks.make(name, options, dim=C, dtype=torch.float16, noise=0.0)
    for factor, is_finite in ((1.0, True), (1.02, False)):
        x = torch.full((1, C), factor * LARGEST_SUM[torch.float16] / weight_sum(site), dtype=torch.float16)
        x[:, ::2] *= -1
        assert bool(site(x, x).isfinite().all()) == is_finite


# --- deep models, and lopsided ones --------------------------------------------------------------------------------

LAMBDAS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"skip_lambda": weight}) for name in ("rskip_ln", "xskip_ln") for weight in (1, 2, 4, 8)),
    ("xskip_ln", {"skip_lambda": 0.5, "branch_scale": 8}),
    *(("wskip_ln", {"wskip_init": start}) for start in (8, -8)),
]


def is_finite(start: tuple[float, float]) -> bool:
    """Whether a new model's loss and gradient are."""
    return all(0 < value < math.inf for value in start)


@pytest.mark.parametrize("name", ["rskip_ln", "xskip_ln"])
def test_a_deep_model_with_a_large_lambda_starts_finite(name: str) -> None:
    assert is_finite(deep.start(name, 24, 24, False, torch.float16, skip_lambda=8))


@pytest.mark.long
@pytest.mark.parametrize("dtype", FLOATS)
def test_deep_models_start_finite(dtype: str, fault: Fault) -> None:
    """In the dtype itself; test_deep.py has autocast."""
    chosen = [*((name, options) for name in structures.NAMES if (options := spec(name).deep) is not None), *LAMBDAS]
    for name, options in chosen:
        assert is_finite(deep.start(name, 24, 24, False, FLOATS[dtype], **options)), (name, options)
    fault(
        f"24 + 24 layers at the start in {dtype}, every structure but xskip, λ and μ up to 8",
        len(chosen),
        "loss and gradient are finite, without a loss scale",
    )


LOPSIDED = [(24, 2), (2, 24), (1, 1), (0, 1), (1, 0), (0, 0)]


def check_lopsided(name: str, encoder: int, decoder: int, folder: Path) -> None:
    """A new model is finite; saved and loaded, another one gives the same."""
    options = spec(name).deep or {}
    assert is_finite(deep.start(name, encoder, decoder, False, **options)), (name, encoder, decoder)
    model = deep.build(name, encoder, decoder, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape)
    torch.save(model.state_dict(), folder / "model.pt")
    other = deep.build(name, encoder, decoder, **options).eval()
    other.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    words = torch.randint(4, 30, (2, 5), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        first, second = (one(words, torch.full((2,), 5), words)[0] for one in (model, other))
    assert torch.equal(first, second) and first.isfinite().all(), (name, encoder, decoder)


@pytest.mark.parametrize(("encoder", "decoder"), [(5, 1), (1, 0)])
@structures.each
def test_a_lopsided_model(name: str, encoder: int, decoder: int, tmp_path: Path) -> None:
    check_lopsided(name, encoder, decoder, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("encoder", "decoder"), LOPSIDED)
def test_lopsided_models(encoder: int, decoder: int, tmp_path: Path, fault: Fault) -> None:
    for name in structures.NAMES:
        check_lopsided(name, encoder, decoder, tmp_path)
    fault(
        f"{encoder} + {decoder} layers, every structure",
        len(structures.NAMES),
        "loss and gradient are finite at the start; a saved model, loaded, gives the same logits bit by bit",
    )


@pytest.mark.parametrize(("encoder", "decoder"), [(24, 2), (2, 24), (1, 1)])
def test_coefficients_of_lopsided_models(encoder: int, decoder: int) -> None:
    """Each stack's own depth counts, and both in DeepNorm's encoder."""
    layers = {"encoder": encoder, "decoder": decoder}
    sublayers = {"encoder": 2 * encoder, "decoder": 3 * decoder}

    def sites(name: str, **options: Any) -> list[tuple[str, Any]]:
        model = deep.build(name, encoder, decoder, **options)
        return [(key.split(".")[0], site) for key, site in connections.sites(model).items()]

    # Wang 2022, table 1.
    scales = {"encoder": math.exp((4 * math.log(encoder) + math.log(decoder)) / 16), "decoder": decoder**0.25}
    factors = {"encoder": (0.81, 0.87), "decoder": (3**0.25, 12**-0.25)}
    for stack, site in sites("deep_norm"):
        alpha, beta = factors[stack]
        assert (site.alpha, site.beta) == pytest.approx((alpha * scales[stack], beta / scales[stack]), rel=1e-12)
    for stack, site in sites("keel"):
        assert site.alpha == (1 if site.place.layer == 0 else sublayers[stack])
    for stack, site in sites("layer_scale"):
        assert site.branch_weight.unique().tolist() == pytest.approx([1e-5 if layers[stack] == 24 else 0.1])
    for stack, site in sites("admin", admin_start="closed"):
        n = sublayers[stack]
        assert site.skip_weight.unique().tolist() == pytest.approx([math.sqrt((n + 1) / math.log(n + 1) - 1)])
    for stack, site in sites("b2t"):
        assert site.scale == pytest.approx(1 / math.sqrt(layers[stack]))
    for stack, site in sites("mix_ln"):
        assert site.is_post == (site.place.layer < {24: 6, 2: 1, 1: 1}[layers[stack]])
    for _, site in sites("dense_former"):
        weights = None if site.layer_weights is None else site.layer_weights.tolist()
        assert weights == ([0.0] * (site.place.layer + 1) + [1.0] if site.place.last else None)


# --- random shapes and options beside the formulas in fp64 ---------------------------------------------------------

ALL_DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]  # the kernels have all but the first
LAYOUTS = ["contiguous", "transposed", "sliced", "strided", "expanded"]
SAMPLES, ROUNDINGS, SLACK = 2, 4, 8
# What sums products: its error is of the order of the sum of their magnitudes.
SUMS = {torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.sum, torch.ops.aten.mean}


class Roundings(TorchDispatchMode):
    """Moves the result of every operation by up to a few roundings of a dtype, at random."""

    def __init__(self, dtype: torch.dtype, generator: torch.Generator) -> None:
        super().__init__()
        limits = torch.finfo(dtype)
        self.eps, self.least = ROUNDINGS / 2 * limits.eps, limits.smallest_normal * limits.eps / 4
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(one.alias_info is not None for one in func._schema.returns) or not isinstance(result, Tensor):
            return result
        size = result
        if func.overloadpacket in SUMS:
            size = func(*[one.abs() if isinstance(one, Tensor) else one for one in args], **(kwargs or {}))
        noise = torch.empty_like(result).uniform_(-1, 1, generator=self.generator)
        noise.add_(noise.sign())  # not so small that fp64 does not see it
        return noise.mul_(size.abs().mul_(self.eps).add_(self.least)).add_(result)


def draw_options(choose: random.Random, name: str, is_fused: bool = False) -> dict[str, Any]:
    """Legal values of all options of a structure."""
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
            if has_kernel(name, drawn) or not is_fused:
                return drawn
        except connections.InvalidOption:
            pass  # options that do not go together


def draw_input(choose: random.Random, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    """Numbers of a magnitude, laid out in memory in one of several ways."""
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
    """One drawn call: what is computed, from what, and which of it has a gradient."""

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
        """y and its gradients; sources keep how they lie in memory."""
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
    """Move all parameters off their start values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += (0.3 * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)


class Both(nn.Module):
    """What a site gives, and beside it what its branch sees."""

    def __init__(self, site: connections.ResidualConnection) -> None:
        super().__init__()
        self.site = site

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return torch.cat([self.site(x, f), self.site.branch_input(x)], dim=-1)


class Formula(nn.Module):
    """A stack by its formula in place of its modules."""

    def __init__(self, stack: stacks.Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = stacks.whole(self.stack, x)
        return whole


def drawn_masks(site: Any, x: Tensor, f: Tensor, seed: int, is_fused: bool) -> list[Tensor]:
    """What a site's dropouts will multiply x and f by after this seed."""
    torch.manual_seed(seed)
    p = site.dropout.p if site.training else 0.0
    if is_fused and p:
        own = int(torch.randint(0x7FFFFFFF, ()))
        mask = ops.dropout_mask(tuple(f.shape), p, own, f.device) / (1 - p)
    else:
        mask = site.dropout(torch.ones_like(f.detach()))
    other = site.shortcut_dropout(torch.ones_like(x.detach())) if hasattr(site, "shortcut_dropout") else torch.ones(())
    return [other.double(), mask.double()]


def draw_case(number: int, is_fused: bool) -> Case:
    choose = random.Random(number)
    torch.manual_seed(number)
    names = [name for name in structures.NAMES if not is_fused or has_kernel(name, {})]
    name = choose.choice(names)
    options = draw_options(choose, name, is_fused)
    dtype = choose.choice(ALL_DTYPES[is_fused:])
    layout = choose.choice(LAYOUTS)
    dim = choose.choice([1, 2, 3, choose.randint(4, 40), choose.randint(4, 40), choose.randint(41, 300)])
    sizes = [0, 1, 1, 2, 3, 5, 7]
    rows: tuple[int, ...] = choose.choice([(), (choose.randint(0, 70),), (choose.choice(sizes), choose.choice(sizes))])
    if is_fused:
        dim, rows = choose.randint(64, 300), choose.choice([(1,), (3,), (2, 1), (2, 2)])
    if spec(name).formula is None:
        return draw_stack(choose, name, options, dtype, layout, dim, rows)
    place = replace(stacks.HERE, dim=dim)
    p = choose.choice([0.0, 0.1, 0.5])
    site = connections.build(name, place, p, backend="triton" if is_fused else "eager", **options)
    move_parameters(site.train(choose.random() < 0.7).to(dtype), number)
    x, f = (draw_input(choose, (*rows, dim), dtype, layout) for _ in range(2))
    x_learns, f_learns = choose.choice([(True, True), (True, False), (False, True), (False, False)])
    x, f = x.requires_grad_(x_learns), f.requires_grad_(f_learns)
    masks = drawn_masks(site, x, f, number, is_fused)
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
    """A whole stack. Formulas that go stream by stream take long."""
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


def check_case(number: int, is_fused: bool) -> dict[str, float]:
    """Compare one case; return its errors in terms of what roundings explain."""
    case = draw_case(number, is_fused)
    found = case.results(case.ours, case.dtype)
    exact = case.results(case.reference, torch.float64)
    limits = torch.finfo(case.dtype)
    # A norm of one or two numbers gives about 0 or ±1, and has hardly a derivative: what is found is error, as steep as
    # a norm can be, the more as torch on a CPU keeps the statistics of 16-bit numbers in 16 bits.
    is_flat = next(iter(case.sources.values())).size(-1) <= 2
    steepest, samples = (connections.place.EPS**-0.5, 8) if is_flat else (1.0, SAMPLES)
    generator = torch.Generator().manual_seed(number)
    moved = []
    for _ in range(samples):
        with Roundings(case.dtype, generator):
            moved.append(case.results(case.reference, torch.float64))
    shares = {}
    for key, right in exact.items():
        assert found[key].dtype == case.dtype and found[key].shape == right.shape, f"{number}: {case}: {key}"
        if largest(right) > limits.max / 2:
            continue
        noise = math.sqrt(sum(largest(one[key] - right) ** 2 for one in moved) / samples)
        one_rounding = limits.eps * largest(right) + limits.smallest_normal * limits.eps
        worst = largest(found[key].double() - right)
        shares[key] = worst / (noise + one_rounding) / (1.0 if key == "y" else steepest)
        assert shares[key] <= SLACK, f"{number}: {case}: {key} {worst:g}, noise {noise:g}"
    return shares


def check_cases(numbers: range, is_fused: bool, fault: Fault) -> None:
    shares = [share for number in numbers for share in check_case(number, is_fused).values()]
    assert len(shares) > len(numbers)
    what = "kernels" if is_fused else "eager"
    fault(
        f"random structure, options, shape, layout, dtype and dropout, {what}",
        len(numbers),
        f"y and {len(shares) - len(numbers):,} gradients equal the formula in fp64; the largest error is "
        f"{max(shares):.1f} times what {ROUNDINGS} roundings an operation explain ({SLACK} allowed)",
    )


@pytest.mark.structures
def test_random_cases(fault: Fault) -> None:
    check_cases(range(200), False, fault)


@pytest.mark.long
@pytest.mark.parametrize("first", range(200, 9_000, 2_200))
def test_many_random_cases(first: int, fault: Fault) -> None:
    check_cases(range(first, first + 2_200), False, fault)


@pytest.mark.long
def test_random_cases_of_the_kernels(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.self_check, "fault", lambda *_: "")  # seconds, for every width
    check_cases(range(9_000, 10_000), True, fault)


# --- gradients that overflow: fairseq's loss scaling ---------------------------------------------------------------

# Without flattening: fairseq flattens on a GPU.
OPTIMIZERS = ["--fp16 --fp16-no-flatten-grads", "--memory-efficient-fp16"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Of every training step: the loss scale before and after it, whether it counts, and whether weights changed."""
    from fairseq.trainer import Trainer

    import fairseq_resid.models  # noqa: F401  (the bridges, before what is put around them)

    seen: Steps = []
    original = Trainer.train_step

    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        def state() -> tuple[float, int, list[Tensor]]:
            weights = [parameter.detach().clone() for parameter in self.model.parameters()]
            return self.optimizer.scaler.loss_scale, self.get_num_updates(), weights

        scale, updates, weights = state()
        result = original(self, *args, **kwargs)
        after = state()
        changed = any(not torch.equal(one, other) for one, other in zip(weights, after[2], strict=True))
        seen.append((scale, after[0], after[1] > updates, changed))
        return result

    monkeypatch.setattr(Trainer, "train_step", train_step)
    return seen


@pytest.mark.both
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "residual",
    [
        "rskip_ln --skip-lambda 8",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("post_ln", "sas", "hyper", "xskip")),
    ],
)
def test_an_overflow_of_gradients_costs_its_update_alone(
    residual: str, optimizer: str, train: Any, steps: Steps, tmp_path: Path, fault: Fault
) -> None:
    flags = ["--residual", *residual.split(), *optimizer.split(), "--fp16-init-scale", 2**16, "--dropout", 0]
    output = train(tmp_path, *flags).output
    overflows = [step for step in steps if not step[2]]
    assert len(overflows) >= 3 and output.count("gradient overflow detected") == len(overflows)
    for before, after, counts, changed in steps:
        assert after == (before if counts else before / 2)
        assert counts or not changed
    assert [changed for _, _, counts, changed in steps if counts] == [False, True, True, True]  # the first lr is 0
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    unset = {name for name in saved["model"] if name.endswith("_float_tensor")}  # stock never sets it
    assert all(saved["model"][name].isfinite().all() for name in saved["model"].keys() - unset)
    fault(
        f"gradients overflow fp16: `{residual}`, `{optimizer}`, loss scale 2^16 at first",
        len(overflows),
        "the update is skipped, weights stay bit by bit, the loss scale is halved; 4 updates follow",
    )


@pytest.mark.both
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loss_scale_at_its_least_ends_in_the_named_error(
    optimizer: str, train: Any, tmp_path: Path, fault: Fault
) -> None:
    flags = [*optimizer.split(), "--fp16-init-scale", 2**20, "--min-loss-scale", 2**16]
    done = train(tmp_path, *flags, check=False)
    assert done.code == 1 and "Traceback" not in done.output
    assert done.error.startswith("fairseq_resid: error: the training diverged at update 1 (learning rate")
    assert done.output.count("gradient overflow detected") == 3
    assert [file.name for file in tmp_path.iterdir()] == ["crash.pt"]
    fault(f"`{optimizer}`: overflows until --min-loss-scale", 4, "one line: the training diverged at update 1 (...)")
