"""Whole stacks of the structures that depend on where a site stands, or whose state is wider than C."""

from __future__ import annotations

import math
from typing import Any

import pytest
import second_writing
import torch
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.connections import Place, attention, dense
from fairseq_resid.connections.deep_norm import deep_norm_scales
from fairseq_resid.connections.hyper import sinkhorn

C = 8
KINDS = {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}


def places(stack: str, depths: dict[str, int], dim: int = C) -> list[Place]:
    """The places of a stack's sites, first to last."""
    kinds = KINDS[stack]
    sites = depths[stack] * len(kinds)
    return [
        Place(dim, stack, kind, layer, kind == "ffn", layer * len(kinds) + number, sites, depths)
        for layer in range(depths[stack])
        for number, kind in enumerate(kinds)
    ]


class Stack(nn.Module):
    """A stack with tanh of a linear map for every sublayer."""

    def __init__(self, name: str, stack: str, depths: dict[str, int], dim: int = C, **options: Any) -> None:
        super().__init__()
        at = places(stack, depths, dim)
        self.sites = nn.ModuleList(connections.build(name, place, **options) for place in at)
        self.branches = nn.ModuleList(nn.Linear(dim, dim) for _ in at)
        end = Place(dim, stack, "stream", depths[stack], True, len(at), len(at), depths)
        self.end = connections.build_stream(name, end, connections.resolve_final_norm(name, None), **options)

    def forward(self, x: Tensor) -> Tensor:
        for site, branch in zip(self.sites, self.branches):  # noqa: B905  (TorchScript)
            x = site.enter(x)
            x = site(x, torch.tanh(branch(site.branch_input(x))))
        return x if self.end is None else self.end(x)


def hyper_formula(stack: Stack, x: Tensor, streams: int, dynamic: bool) -> Tensor:
    """Zhu 2024, eq. 1 to 13, stream by stream."""
    columns = [x for _ in range(streams)]
    for i, site in enumerate(stack.sites):
        a, b = site.mixing, site.writing
        reads = [a[0, j] + torch.zeros((*x.shape[:-1], 1), dtype=x.dtype) for j in range(streams)]
        writes = [b[j] + torch.zeros_like(reads[0]) for j in range(streams)]
        mixes = [[a[1 + k, j] + torch.zeros_like(reads[0]) for j in range(streams)] for k in range(streams)]
        if dynamic:
            normed = [norm(column, site.stream_norm) for column in columns]
            for j, seen in enumerate(normed):
                reads[j] = reads[j] + site.mixing_scale * torch.tanh(seen @ site.mixing_weight[0]).unsqueeze(-1)
                writes[j] = writes[j] + site.writing_scale * torch.tanh(seen @ site.writing_weight[0]).unsqueeze(-1)
                for k in range(streams):
                    logits = (seen @ site.mixing_weight[1 + k]).unsqueeze(-1)
                    mixes[k][j] = mixes[k][j] + site.mixing_scale * torch.tanh(logits)
        h = sum(reads[j] * columns[j] for j in range(streams))
        f = branch(stack, i, norm(h, site.norm))
        columns = [sum(mixes[k][j] * columns[j] for j in range(streams)) + writes[k] * f for k in range(streams)]
    return norm(sum(columns), stack.end)


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("weights", ["static", "dynamic"])
def test_a_whole_stack_of_hyper_connections(weights: str, streams: int) -> None:
    made = shaken("hyper", hyper_streams=streams, hyper_weights=weights)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    expected = hyper_formula(made, x, streams, weights == "dynamic")
    torch.testing.assert_close(made(x), expected, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad(y.square().sum(), [x, *made.parameters()]) for y in (made(x), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


def mhc_formula(stack: Stack, x: Tensor, streams: int) -> Tensor:
    """Xie 2025, stream by stream; the doubly stochastic matrix by loops over rows and columns."""
    columns = [x for _ in range(streams)]
    for i, site in enumerate(stack.sites):
        flat = torch.cat(columns, dim=-1)
        u = flat / (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt() * site.stream_weight
        pre = torch.sigmoid(site.scales[0] * (u @ site.pre_weight.T) + site.pre_bias)
        post = 2 / (1 + torch.exp(-(site.scales[1] * (u @ site.post_weight.T) + site.post_bias)))
        logits = site.scales[2] * (u @ site.mixing_weight.T) + site.mixing_bias
        m = [[logits[..., streams * k + j].exp() for j in range(streams)] for k in range(streams)]
        for _ in range(20):
            sums = [sum(m[k][j] for k in range(streams)) for j in range(streams)]
            m = [[m[k][j] / sums[j] for j in range(streams)] for k in range(streams)]
            m = [[row[j] / sum(row) for j in range(streams)] for row in m]
        f = branch(stack, i, norm(sum(pre[..., j, None] * columns[j] for j in range(streams)), site.norm))
        columns = [
            sum(m[k][j].unsqueeze(-1) * columns[j] for j in range(streams)) + post[..., k, None] * f
            for k in range(streams)
        ]
    return norm(sum(columns), stack.end)


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_a_whole_stack_of_mhc(streams: int) -> None:
    made = shaken("mhc", hyper_streams=streams)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    expected = mhc_formula(made, x, streams)
    torch.testing.assert_close(made(x), expected, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad(y.square().sum(), [x, *made.parameters()]) for y in (made(x), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


def test_mhc_mixes_by_a_doubly_stochastic_matrix() -> None:
    found = sinkhorn(3 * torch.randn(50, 4, 4, dtype=torch.float64), 20)
    assert (found > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(50, 4, dtype=torch.float64))  # it ends on the rows
    torch.testing.assert_close(found.sum(-2), torch.ones(50, 4, dtype=torch.float64), atol=0.05, rtol=0)
    for logits in ([[1e4, 0.0], [0.0, 1e4]], [[200.0, 200.0], [0.0, 0.0]]):
        assert sinkhorn(torch.tensor(logits), 20).isfinite().all()
    wide = connections.build("mhc", 4).half()
    state = torch.full((1, 16), 300.0, dtype=torch.float16)
    state[..., ::2] = -300.0
    gates = wide.logits(state, 1, wide.post_weight, wide.post_bias)
    torch.testing.assert_close(
        gates.float(), wide.float().logits(state.float(), 1, wide.post_weight, wide.post_bias), atol=1e-3, rtol=1e-2
    )
    site = connections.build("mhc", 4)
    start = sinkhorn(site.mixing_bias.view(4, 4), 20)
    assert (start.diagonal() > 0.99).all()


def test_hyper_connections_start_as_a_pre_norm_stack() -> None:
    """n equal streams, of which each branch reads one: n times the pre-norm stream, before the norm at the end."""
    torch.manual_seed(0)
    hyper = Stack("hyper", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain = Stack("pre_ln", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain.branches.load_state_dict(hyper.branches.state_dict())
    x = torch.randn(5, 2, C, dtype=torch.float64)
    torch.testing.assert_close(hyper(x), plain(x), rtol=1e-4, atol=1e-4)  # the last norm's eps sees 4 x
    for index, site in enumerate(hyper.sites):
        assert site.mixing[0].tolist() == [float(index % 4 == j) for j in range(4)]
        assert torch.equal(site.mixing[1:], torch.eye(4, dtype=torch.float64)) and (site.writing == 1).all()


def shaken(name: str, stack: str = "decoder", depth: int = 3, **options: Any) -> Stack:
    torch.manual_seed(1)
    made = Stack(name, stack, {"encoder": 4, "decoder": 3, stack: depth}, **options).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def norm(v: Tensor, module: Any, eps: float = 1e-5) -> Tensor:
    centred = v - v.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * module.weight + module.bias


def branch(stack: Stack, index: int, seen: Tensor) -> Tensor:
    return torch.tanh(seen @ stack.branches[index].weight.T + stack.branches[index].bias)


def whole(name: str, stack: Stack, x: Tensor, kinds: int, depth: int) -> Tensor:
    """A whole stack, from the sources' formulas."""
    d = x
    for i, site in enumerate(stack.sites):
        layer = i // kinds
        f = lambda seen: branch(stack, i, seen)  # noqa: B023, E731
        if name == "scaled_pre_ln":
            x = x + f(norm(x, site.norm) / math.sqrt(layer + 1))
        elif name == "mix_ln":
            first = layer < math.ceil(depth / 4)
            x = norm(x + f(x), site.norm) if first else x + f(norm(x, site.norm))
        elif name == "keel":
            y = (1 if layer == 0 else kinds * depth) * x + f(norm(x, site.inner_norm))
            x = y if i == 0 else norm(y, site.norm)
        elif name == "resi_dual":
            out = f(x)
            d, x = d + out, norm(x + out, site.norm)
    if name == "resi_dual":
        return x + norm(d, stack.end, 1e-7)
    return x if stack.end is None else norm(x, stack.end)


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["scaled_pre_ln", "mix_ln", "keel", "resi_dual"])
def test_a_whole_stack(name: str, stack: str, depth: int) -> None:
    made = shaken(name, stack, depth)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    expected = whole(name, made, x, len(KINDS[stack]), depth)
    torch.testing.assert_close(made(x), expected, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad(y.square().sum(), [x, *made.parameters()]) for y in (made(x), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


def parts(stack: Stack) -> list[Any]:
    """Of every site: its branch, and the weight and bias of its norm."""
    branches = [lambda seen, i=i: branch(stack, i, seen) for i in range(len(stack.sites))]
    return [(f, site.norm.weight, site.norm.bias) for f, site in zip(branches, stack.sites, strict=True)]


def by_layer(sites: list[Any], kinds: int) -> list[list[Any]]:
    return [sites[start : start + kinds] for start in range(0, len(sites), kinds)]


def written_again(name: str, stack: Stack, x: Tensor, kinds: int, block_size: int) -> Tensor:
    """The stack by the formulas of somebody who did not know ours."""
    if name == "b2t":
        return second_writing.b2t(x, by_layer(parts(stack), kinds))
    end: Any = stack.end
    if name == "dense_former":
        weights = [site.layer_weights for site in stack.sites if site.layer_weights is not None]
        return second_writing.dense_former(x, by_layer(parts(stack), kinds), weights, (end.weight, end.bias))
    depths = [(None, None), *((site.depth.query, site.depth.weight) for site in list(stack.sites)[1:])]
    sites = [(f, *depth, *norms) for (f, *norms), depth in zip(parts(stack), depths, strict=True)]
    exit_parts = (end.depth.query, end.depth.weight, end.weight, end.bias)
    return second_writing.attn_residual(x, sites, exit_parts, block_size)


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("b2t", {}), ("dense_former", {}), *[("attn_residual", {"block_size": size}) for size in (1, 2, 3, 4, 50)]],
)
def test_a_whole_stack_beside_a_second_writing(name: str, options: dict[str, int], stack: str, depth: int) -> None:
    made = shaken(name, stack, depth, **options)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    expected = written_again(name, made, x, len(KINDS[stack]), options.get("block_size", 1))
    torch.testing.assert_close(made(x), expected, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad(y.square().sum(), [x, *made.parameters()]) for y in (made(x), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


GROWING = [("attn_residual", {}), ("attn_residual", {"block_size": 2}), ("dense_former", {})]


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_a_growing_state_in_one_buffer_is_the_state_put_together(
    name: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shaken(name, **options)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    found = []
    for _ in range(2):
        y = made(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *made.parameters()])])
        for module in (attention, dense):
            monkeypatch.setattr(module, "append", lambda state, value, _: torch.cat([state, value], dim=-1))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_a_growing_state_is_allocated_once(name: str, options: dict[str, int]) -> None:
    made, x = shaken(name, **options), torch.randn(5, 2, C, dtype=torch.float64)
    before, state, places_in_memory = x.clone(), x, set()
    for index, site in enumerate(made.sites):
        state = site(site.enter(state), branch(made, index, site.branch_input(state)))
        places_in_memory.add(state.untyped_storage().data_ptr())
    assert len(places_in_memory) == 1 and torch.equal(x, before)
    widest = 9 + 1 + (3 if name == "dense_former" else 0)
    assert state.size(-1) == widest * C == state.untyped_storage().nbytes() // 8 // 10
    # A slice of something wider is not taken for the buffer.
    wide = torch.randn(5, 2, widest * C, dtype=torch.float64)
    kept = wide.clone()
    made.sites[0](wide[..., :C], x)
    assert torch.equal(wide, kept)
    if name == "dense_former" or options:
        with pytest.raises(RuntimeError, match=r"was (one|a sublayer) left out"):
            made.sites[2](x, x)


@pytest.mark.parametrize("name", ["attn_residual", "dense_former"])
def test_states_under_autocast_keep_their_dtype(name: str) -> None:
    site = connections.build(name, places("encoder", {"encoder": 2})[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = site(torch.randn(3, C), torch.randn(3, C, dtype=torch.bfloat16))
    assert state.dtype == torch.float32 and state.shape == (3, 2 * C)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_profiled_start_of_admin(stack: str) -> None:
    torch.manual_seed(1)
    made = Stack("admin", stack, {"encoder": 4, "decoder": 3}).double()
    x = torch.randn(5, 2, C, dtype=torch.float64)
    omegas, expected = second_writing.admin_start(x, parts(made))
    sites = list(made.sites)
    with torch.no_grad(), connections.profiler("admin", connections.resolve("admin", {}))(sites):
        y = made(x)
    assert omegas[0] == 1 and len({round(omega, 3) for omega in omegas}) == len(omegas)
    for site, omega in zip(sites, omegas, strict=True):
        torch.testing.assert_close(site.skip_weight, torch.full((C,), omega, dtype=torch.float64))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(made(x), expected)  # the sites are themselves again
    assert connections.profiler("admin", connections.resolve("admin", {"admin_start": "closed"})) is None


def test_closed_start_of_admin() -> None:
    sites = [connections.build("admin", place, admin_start="closed") for place in places("decoder", {"decoder": 6})]
    assert {value for site in sites for value in site.skip_weight.tolist()} == {sites[0].skip_weight[0].item()}
    assert sites[0].skip_weight[0].item() == pytest.approx((19 / math.log(19) - 1) ** 0.5)
    with pytest.raises(ValueError, match="depends on the depth"):
        connections.build("admin", C, admin_start="closed")


def test_start_values_of_b2t() -> None:
    torch.manual_seed(0)
    site = connections.build("b2t", places("encoder", {"encoder": 9, "decoder": 1})[0])
    linears = {name: nn.Linear(4, 4) for name in ("query", "key", "value", "output")}
    before = {name: (linear.weight.clone(), linear.bias.clone()) for name, linear in linears.items()}
    site.init_branch(**linears)
    for name, (weight, bias) in before.items():
        torch.testing.assert_close(linears[name].weight, weight / 3)
        assert torch.equal(linears[name].bias, bias)


def test_attention_over_depth_starts_as_a_mean_and_dense_former_as_pre_norm() -> None:
    torch.manual_seed(0)
    made, x = Stack("attn_residual", "encoder", {"encoder": 3}), torch.randn(5, C)
    state = torch.randn(5, 4 * C)
    torch.testing.assert_close(made.sites[3].branch_input(state), norm(state.view(5, 4, C).mean(1), made.sites[3].norm))
    dense_one = Stack("dense_former", "encoder", {"encoder": 3})
    plain = Stack("pre_ln", "encoder", {"encoder": 3})
    plain.branches.load_state_dict(dense_one.branches.state_dict())
    torch.testing.assert_close(dense_one(x), plain(x))


def test_the_state_of_resi_dual() -> None:
    site = connections.build("resi_dual", C).double()
    x, d, f = (torch.randn(3, C, dtype=torch.float64) for _ in range(3))
    state = torch.cat([x, d], dim=-1)
    assert torch.equal(site.enter(x), torch.cat([x, x], dim=-1)) and site.enter(state) is state
    assert torch.equal(site.branch_input(state), x)
    torch.testing.assert_close(site(state, f), torch.cat([norm(x + f, site.norm), d + f], dim=-1))
    end = connections.build_stream("resi_dual", Place(C, kind="stream"), False)
    assert end is not None
    torch.testing.assert_close(end.double()(x), x + norm(x, end, 1e-7))  # if every layer was dropped


@pytest.mark.parametrize(
    "name", ["resi_dual", "keel", "mix_ln", "pre_ln", "hyper", "mhc", "b2t", "attn_residual", "dense_former"]
)
def test_a_stack_under_torchscript_and_autocast(name: str) -> None:
    made = shaken(name).float()
    x = torch.randn(5, 2, C)
    torch.testing.assert_close(torch.jit.script(made)(x), made(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(made(x).float(), made(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("stack", "depths", "alpha", "beta"),
    [
        # Wang 2022, table 1, in numbers of this test's own.
        ("encoder", {"encoder": 6, "decoder": 6}, 0.81 * 6 ** (5 / 16), 0.87 * 6 ** (-5 / 16)),
        ("decoder", {"encoder": 6, "decoder": 6}, 18**0.25, 72**-0.25),
        ("encoder", {"encoder": 24, "decoder": 4}, 0.81 * (24**4 * 4) ** 0.0625, 0.87 * (24**4 * 4) ** -0.0625),
        ("encoder", {"encoder": 12}, 24**0.25, 96**-0.25),
        ("encoder", {"encoder": 12, "decoder": 0}, 24**0.25, 96**-0.25),
        ("decoder", {"decoder": 12}, 24**0.25, 96**-0.25),
    ],
)
def test_scales_of_deep_norm(stack: str, depths: dict[str, int], alpha: float, beta: float) -> None:
    assert deep_norm_scales(places(stack, depths)[0]) == pytest.approx((alpha, beta), rel=1e-12)


def test_start_values_of_deep_norm() -> None:
    torch.manual_seed(0)
    site = connections.build("deep_norm", places("encoder", {"encoder": 12})[0])
    linears = {name: nn.Linear(400, 200) for name in ("query", "key", "value", "output", "fc1", "fc2")}
    biases = {name: linear.bias.clone() for name, linear in linears.items()}
    site.init_branch(**linears)
    for name, linear in linears.items():
        gain = 1.0 if name in ("query", "key") else 96**-0.25
        assert linear.weight.std().item() == pytest.approx(gain * math.sqrt(2 / 600), rel=0.02)
        assert torch.equal(linear.bias, biases[name])


@pytest.mark.parametrize(("layers", "start"), [(18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_start_values_of_layer_scale(layers: int, start: float) -> None:
    site = connections.build("layer_scale", places("encoder", {"encoder": layers, "decoder": 1})[0])
    assert (site.branch_weight == start).all()


@pytest.mark.parametrize("name", ["deep_norm", "keel", "layer_scale", "mix_ln", "b2t", "dense_former"])
def test_a_structure_that_depends_on_the_depth_says_so(name: str) -> None:
    with pytest.raises(ValueError, match="depends on the depth of its model: give build"):
        connections.build(name, C)


@pytest.mark.parametrize("name", connections.names())
def test_final_norms(name: str) -> None:
    source = connections.structure(name).final_norm
    if source is None:
        with pytest.raises(connections.InvalidOption, match="--final-norm layer: the residual"):
            connections.resolve_final_norm(name, "layer")
        return
    assert [connections.resolve_final_norm(name, given) for given in (None, "none", "layer")] == [source, False, True]
    with pytest.raises(connections.InvalidOption, match="--final-norm batch: choose one of none, layer"):
        connections.resolve_final_norm(name, "batch")
    end = Place(C, kind="stream")
    bare = connections.build_stream(name, end, False)
    assert (bare is None) == (name != "dense_former") and not (bare and list(bare.parameters()))
    made, x = connections.build_stream(name, end, True), torch.randn(3, C)
    assert made is not None and list(made.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(made(x), nn.functional.layer_norm(x, (C,)))
