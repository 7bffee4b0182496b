"""--residual-backend compile, and structures compiled by a user: the values and gradients of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.ops import compilation
from support import structures
from support.stacks import C, inputs, make, move, moved_stack
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
    compare(torch.compile(call, dynamic=dynamic), call, module, arguments)


def compare(made: Callable[..., Tensor], call: Callable[..., Tensor], module: nn.Module, arguments: Any) -> None:
    """Compare the values and gradients of two functions of a module for inputs of several shapes."""
    for shape in SHAPES:
        given = [argument.requires_grad_() for argument in arguments(shape)]
        weight = torch.randn_like(call(*given))
        sources = [*given, *module.parameters()]
        found, expected = (
            (y, *torch.autograd.grad((y * weight).sum(), sources, allow_unused=True, materialize_grads=True))
            for y in (made(*given), call(*given))
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


# --- --residual-backend compile --------------------------------------------------------------------------------------

COMPILED = [name for name in structures.NAMES if connections.structure(name).connection.compiles]

SHARING = [name for name in COMPILED if name != "siamese"]  # its factor of F depends on the layer


def decoder_sites(name: str, depth: int = 1, dropout: float | nn.Module = 0.0) -> list[Any]:
    """Return the sites of a decoder, with compiled formulas and parameters that differ from their initial values."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(1)
    kinds = ("self_attn", "encoder_attn", "ffn")
    layers, _ = connections.build_stack(
        name, C, depth, dropout, kinds=kinds, stack="decoder", depths={"encoder": 6}, backend="compile"
    )
    return [move(site) for layer in layers for site in layer]


def graphs() -> int:
    """Return the number of graphs compiled since `decoder_sites`."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def run(sites: list[Any], name: str) -> None:
    for site in sites:
        x, f = inputs(4, 2, C, dtype=torch.float32)
        site(spec(name).state(site, x).detach(), f.requires_grad_())


@over("name", [pytest.param(name, marks=[] if (name, None) in IN_EVERY_RUN else pytest.mark.long) for name in COMPILED])
def test_backend_compile_equals_eager(name: str) -> None:
    for site in decoder_sites(name):

        def arguments(shape: tuple[int, ...], site: Any = site) -> list[Tensor]:
            x, f = inputs(*shape, C, dtype=torch.float32)
            return [spec(name).state(site, x).detach(), f]

        compare(site, site.combine, site, arguments)
    assert graphs() >= 2


@over("name", [pytest.param(name, marks=[] if (name, None) in IN_EVERY_RUN else pytest.mark.long) for name in SHARING])
def test_layers_share_their_graphs(name: str) -> None:
    sites = decoder_sites(name, depth=4)
    run(sites[3:6], name)  # the first and the last layer may have other formulas
    made = graphs()
    run(sites[6:9], name)
    assert 0 < made <= 3 and graphs() == made


def test_structures_whose_state_grows_stay_eager() -> None:
    assert sorted(set(structures.NAMES) - set(COMPILED)) == ["attn_residual", "dense_former", "dlcl"]
    sites = decoder_sites("dlcl")
    x, f = inputs(4, 2, C, dtype=torch.float32)
    sites[0](sites[0].enter(x), f)
    assert graphs() == 0


class Halved(nn.Module):
    """A dropout module of a user, which torch must not see."""

    def forward(self, f: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return f / 2


def test_dropout_is_inside_the_graph_only_if_it_is_known() -> None:
    x, f = inputs(64, 8, C, dtype=torch.float32)
    (site, *_) = decoder_sites("xskip", dropout=0.5)
    kept = (site(torch.zeros_like(f), f) / f).round(decimals=4)
    assert set(kept.unique().tolist()) == {0.0, 2.0} and 0.4 < (kept == 0).float().mean() < 0.6
    torch.testing.assert_close(site.eval()(x, f), x + f)
    (site, *_) = decoder_sites("xskip", dropout=Halved())
    torch.testing.assert_close(site(x, f), x + f / 2)
    assert graphs() == 1


@torch._dynamo.config.patch(cache_size_limit=1)
def test_fallback_names_the_structure(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compilation, "MOST_VARIANTS", 1)
    monkeypatch.setattr(compilation, "_failed", set())
    compilation._compiled.cache_clear()
    site = decoder_sites("xskip_ln")[0]
    for _ in range(2):
        for dtype in (torch.float32, torch.float64):
            x, f = inputs(4, 2, C, dtype=dtype)
            site.to(dtype)
            torch.testing.assert_close(site(x, f), site.combine(x, f))
    said = [record.getMessage() for record in caplog.records if record.name == compilation.__name__]
    assert len(said) == 1 and "torch.compile refuses xskip_ln, which now runs eagerly: " in said[0]
    compilation._compiled.cache_clear()


def test_site_that_is_not_built_by_name_compiles() -> None:
    structure = connections.structure("xskip")
    site = structure.connection(connections.Place(C), structure.options(), 0.0, "compile")
    x, f = inputs(4, 2, C, dtype=torch.float32)
    torch.testing.assert_close(site(x, f), site.combine(x, f))


def test_compiled_sites_have_the_names_of_eager_ones_and_support_transforms() -> None:
    site = decoder_sites("sas")[0]
    assert site.state_dict().keys() == connections.build("sas", C).state_dict().keys()
    x, f = inputs(4, 2, C, dtype=torch.float32)
    torch.testing.assert_close(torch.func.vmap(site)(x, f), site.combine(x, f))
    whole = torch.compile(site, backend="eager", fullgraph=True)  # a compiled model contains the formula itself
    torch.testing.assert_close(whole(x, f), site.combine(x, f))
    y = torch.utils.checkpoint.checkpoint(site, x.requires_grad_(), f, use_reentrant=False)
    (found,), (expected,) = (torch.autograd.grad(z.sum(), x) for z in (y, site.combine(x, f)))
    torch.testing.assert_close(found, expected)
