"""Whole stacks of every structure: their formulas, growing states, autocast and final norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.connections import Place, attn_residual, dense_former, dlcl
from support import structures
from support.stacks import C, Stack, branch, move, moved_stack, places, whole
from support.structures import each, each_variant, spec

pytestmark = pytest.mark.once  # needs only torch

STACKS = [(name, options) for name in structures.NAMES if spec(name).stack for options in spec(name).examples]
VARIANTS = [case for case in structures.variants().values() if case not in STACKS]


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@structures.over("name options", STACKS + VARIANTS)
def test_whole_stack_equals_its_formula(name: str, options: dict[str, Any], stack: str, depth: int) -> None:
    made = moved_stack(name, stack, min(depth, 3) if spec(name).is_slow else depth, **options)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    expected = whole(made, x)
    torch.testing.assert_close(made(x), expected, rtol=1e-9, atol=1e-9)
    ours, theirs = (torch.autograd.grad(y.square().sum(), [x, *made.parameters()]) for y in (made(x), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


GROWING: list[tuple[str, dict[str, Any]]] = [
    ("attn_residual", {}),
    ("attn_residual", {"block_size": 2}),
    ("dense_former", {}),
    ("dlcl", {}),
    ("dlcl", {"dlcl_norm": "post"}),
]


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_growing_state_in_one_buffer_equals_concatenated_state(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = moved_stack(name, **options)
    x = torch.randn(5, 2, C, dtype=torch.float64, requires_grad=True)
    found = []
    for _ in range(2):
        y = made(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *made.parameters()])])
        for module in (attn_residual, dense_former, dlcl):
            monkeypatch.setattr(module, "append", lambda state, value, _: torch.cat([state, value], dim=-1))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_growing_state_is_allocated_once(name: str, options: dict[str, Any]) -> None:
    made, x = moved_stack(name, **options), torch.randn(5, 2, C, dtype=torch.float64)
    before, state, places_in_memory = x.clone(), x, set()
    for index, site in enumerate(made.sites):
        state = site(site.enter(state), branch(made, index, site.branch_input(state)))
        places_in_memory.add(state.untyped_storage().data_ptr())
    assert len(places_in_memory) == 1 and torch.equal(x, before)
    widest = 9 + 1 + (0 if name == "attn_residual" else 3)
    assert state.size(-1) == widest * C == state.untyped_storage().nbytes() // 8 // 10
    # A slice of a wider tensor is not mistaken for the buffer.
    wide = torch.randn(5, 2, widest * C, dtype=torch.float64)
    kept = wide.clone()
    made.sites[0](wide[..., :C], x)
    assert torch.equal(wide, kept)
    if name != "attn_residual" or options:
        with pytest.raises(
            RuntimeError, match=r"state with \d+ values: must have \d+ at this site; do not skip or repeat"
        ):
            made.sites[2](x, x)


@pytest.mark.parametrize(("name", "options"), GROWING)
def test_two_calls_with_one_state_do_not_affect_each_other(name: str, options: dict[str, Any]) -> None:
    """The second result must not overwrite the first, whichever site has allocated the buffer."""
    made = moved_stack(name, **options)
    x, *values = torch.randn(len(made.sites) + 2, 5, 2, C, dtype=torch.float64).requires_grad_()
    rest = list(zip(made.sites, values, strict=False))

    def run(state: Tensor, steps: Any) -> Tensor:
        for site, value in steps:
            state = site(state, torch.tanh(site.branch_input(state)) + value)
        return state

    for start in (0, 1, 3):
        state = run(x, rest[:start])
        site, value = rest[start]
        both = [site(state, value), site(state, values[-1])]
        ends = [made.end(run(each, rest[start + 1 :])) for each in both]
        expected = [made.end(run(site(state.clone(), each), rest[start + 1 :])) for each in (value, values[-1])]
        assert torch.equal(both[0][..., : state.size(-1)], state)
        torch.testing.assert_close(ends, expected, rtol=1e-12, atol=1e-12)
        sources = [x, *values, *made.sites.parameters()]
        found, wanted = (
            torch.autograd.grad(one.sin().sum() + two.square().sum(), sources, allow_unused=True, retain_graph=True)
            for one, two in (ends, expected)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@each_variant
def test_stack_works_with_torch_func(name: str, options: dict[str, Any]) -> None:
    made = moved_stack(name, "encoder", 2, **options)
    x, tangent, weight = torch.randn(3, 5, 2, C, dtype=torch.float64)
    p = dict(made.named_parameters())

    def loss(p: Any, x: Tensor, weight: Tensor) -> Tensor:
        return (torch.func.functional_call(made, p, x) * weight).sum()

    x.requires_grad_()
    by_x, *by_p = torch.autograd.grad((made(x) * weight).sum(), [x, *p.values()])
    x = x.detach()
    torch.testing.assert_close(torch.func.grad(loss)(p, x, weight), dict(zip(p, by_p, strict=True)))
    each = torch.func.vmap(torch.func.grad(loss), (None, 1, 1))(p, x, weight)  # for every example of the batch
    torch.testing.assert_close({key: value.sum(0) for key, value in each.items()}, dict(zip(p, by_p, strict=True)))
    torch.testing.assert_close(torch.func.vmap(made, 1, 1)(x), made(x))
    y, along = torch.func.jvp(made, (x,), (tangent,))
    torch.testing.assert_close(y, made(x))
    torch.testing.assert_close((along * weight).sum(), (by_x * tangent).sum())


@pytest.mark.parametrize("name", ["attn_residual", "dense_former", "dlcl"])
def test_states_under_autocast_keep_their_dtype(name: str) -> None:
    site = connections.build(name, places("encoder", {"encoder": 2})[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = site(torch.randn(3, C), torch.randn(3, C, dtype=torch.bfloat16))
    assert state.dtype == torch.float32 and state.shape == (3, 2 * C)


@each_variant
def test_stack_works_under_autocast(name: str, options: dict[str, Any]) -> None:
    made = moved_stack(name, **options).float()
    x = torch.randn(5, 2, C)
    expected = made(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = made(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1)


@each_variant
def test_width_is_refused_or_gives_the_site_of_every_place(name: str, options: dict[str, Any]) -> None:
    x, f = torch.randn(2, 3, C), torch.randn(2, 3, C)

    def start(place: Place | int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        torch.manual_seed(1)
        site = connections.build(name, place, **options)
        with torch.no_grad():
            state = site.enter(x)
            return site.state_dict(), site.branch_input(state), site(state, f)

    try:
        expected = start(C)
    except ValueError as error:
        assert "depends on the layer or on the model's depth; pass build" in str(error)
        return
    for place in places("decoder", {"encoder": 2, "decoder": 3}):
        torch.testing.assert_close(start(place), expected, rtol=0, atol=0)


@each_variant
def test_stack_without_layers_equals_the_end_of_the_first_state(name: str, options: dict[str, Any]) -> None:
    """LayerDrop may drop all layers, whose sites would have widened the state."""
    if connections.needs_every_layer(name, connections.resolve(name, options)):
        pytest.skip("LayerDrop is refused")
    x = torch.randn(5, 2, C, dtype=torch.float64)
    for norm in connections.NORMS.values():
        torch.manual_seed(1)
        made = move(Stack(name, "encoder", {"encoder": 2}, norm=norm, **options)).double()
        if made.end is not None:
            torch.testing.assert_close(made.end(x), made.end(made.sites[0].enter(x)), rtol=1e-12, atol=1e-12)


@each
def test_final_norm_follows_flag_or_source(name: str) -> None:
    source = connections.structure(name).final_norm
    if source is None:
        with pytest.raises(connections.InvalidOption, match="final_norm='layer': the residual"):
            connections.resolve_final_norm(name, "layer")
        return
    assert [connections.resolve_final_norm(name, given) for given in (None, "none", "layer")] == [source, False, True]
    with pytest.raises(connections.InvalidOption, match="final_norm='batch': choose one of none, layer"):
        connections.resolve_final_norm(name, "batch")
    end = Place(C, kind="stream")
    bare = connections.build_stream(name, end, False)
    assert (bare is None) == (connections.structure(name).stream is connections.ResidualStream) and not (
        bare and list(bare.parameters())
    )
    x = nn.functional.rms_norm(torch.randn(3, C), [C])  # embedding_shortcut normalises it first
    made = connections.build_stream(name, end, True)
    assert made is not None and list(made.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(made(x), nn.functional.layer_norm(x, (C,)))
