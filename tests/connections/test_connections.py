"""Each structure is compared with its formula, and the registry is tested from a user's point of view."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_resid import connections
from fairseq_resid.connections import Place
from support import structures
from support.stacks import C, build, inputs, make, reference, seen
from support.structures import each, each_example, each_site, spec

pytestmark = pytest.mark.once  # needs only torch


@each_example
def test_site_equals_its_formula(name, options):
    site = make(name, options)
    p = dict(site.named_parameters())
    x, f = inputs(3, 4, C)
    torch.testing.assert_close(site(x, f), reference(name, options, p, x, f), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(site.branch_input(x), seen(name, options, p, x), rtol=1e-10, atol=1e-10)


@each_example
def test_gradients_equal_those_of_the_formula(name, options):
    site = make(name, options)
    p = dict(site.named_parameters())
    x, f = (v.requires_grad_() for v in inputs(3, 4, C))
    weight = torch.linspace(-1, 2, 3 * 4 * C, dtype=torch.float64).view(3, 4, C)

    def gradients(y):
        sources = [x, f, *p.values()]
        return torch.autograd.grad((y * weight).sum(), sources, allow_unused=True, materialize_grads=True)

    ours, theirs = gradients(site(x, f)), gradients(reference(name, options, p, x, f))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@each_site
def test_site_passes_gradcheck(name, options):
    if spec(name).stops_gradient:
        pytest.skip("the gradient is not the derivative; another test compares it with that of the formula")
    site = make(name, options, dim=4)
    keys, parameters = zip(*site.named_parameters(), strict=True) if list(site.parameters()) else ((), ())

    def call(x, f, *values):
        return torch.func.functional_call(site, dict(zip(keys, values, strict=True)), (x, f))

    x, f = (v.requires_grad_() for v in inputs(2, 2, 4))
    assert torch.autograd.gradcheck(call, (x, f, *parameters))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@each_example
def test_output_dtype_equals_input_dtype(name, options, dtype):
    site = make(name, options, dtype=dtype)
    x, f = inputs(3, 4, C, dtype=dtype)
    y = site(x, f)
    assert y.dtype == site.branch_input(x).dtype == dtype
    p = {key: value.double() for key, value in site.named_parameters()}
    tolerance = 24 * torch.finfo(dtype).eps
    expected = reference(name, options, p, x.double(), f.double())
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["post_ln", "xskip_ln", "wskip_ln", "rskip_ln", "sas"])
def test_fp16_norm_statistics_use_wider_dtype(name):
    """The square of 600 overflows fp16; the norm must not."""
    site = make(name, {}, dtype=torch.float16, noise=0.0)
    x, f = (300 * v for v in inputs(3, 4, C, dtype=torch.float16))
    p = {key: value.double() for key, value in site.named_parameters()}
    assert (x + f).abs().max() > 500
    y = site(x, f).double()
    assert y.isfinite().all()
    torch.testing.assert_close(y, reference(name, {}, p, x.double(), f.double()), rtol=0.01, atol=0.02)


# --- parameters ----------------------------------------------------------------------------------------------------


@structures.over("name options", structures.examples([name for name in structures.NAMES if spec(name).extra]))
def test_parameter_count_equals_its_formula(name, options):
    site = build(name, 6, **options)
    expected = 2 * 6 + spec(name).extra(6, connections.resolve(name, options))
    assert sum(p.numel() for p in site.parameters()) == expected
    assert all(p.requires_grad for p in site.parameters())


@pytest.mark.parametrize(
    ("name", "options", "extra"),
    [
        ("rskip_ln", {}, 128),
        ("rskip_ln", {"skip_lambda": 4}, 384),
        ("wskip_ln", {}, 64),
        ("sas", {}, 16642),
        ("sas", {"sas_gamma": "free"}, 24963),
        ("sas", {"sas_gate": "single"}, 258),
        ("sas", {"sas_gate": "transform"}, 8320),
        ("highway", {}, 4032),
        ("highway", {"residual_norm": "layer"}, 4160),
        ("xskip", {}, -128),
    ],
)
def test_extra_parameters_match_the_papers(name, options, extra):
    assert sum(p.numel() for p in connections.build(name, 64, **options).parameters()) == 128 + extra


def test_options_have_their_documented_defaults():
    assert connections.resolve("rskip_ln", {}).values() == {"skip_lambda": 2}
    assert connections.resolve("xskip_ln", {}).values() == {"skip_lambda": 2, "branch_scale": 1}
    assert connections.resolve("xskip", {}).values() == {"skip_lambda": 1, "branch_scale": 1}
    assert connections.resolve("wskip_ln", {"wskip_init": None}).values() == {"wskip_init": 1}
    gated = {"gate_bias": -1, "residual_norm": "none"}
    assert connections.resolve("shortcut_gate", {}).values() == gated
    highway = {**gated, "gate_input": "shortcut", "gate_layers": 1}
    assert connections.resolve("exclusive_gate", {}).values() == highway
    sas = {"sas_gate": "full", "sas_gamma": "coupled", "sas_alpha_bias": 3, "sas_beta_bias": -3}
    assert connections.resolve("sas", {}).values() == sas
    assert connections.resolve("linear_shortcut", {}) == connections.resolve("dropout_shortcut", {})
    assert isinstance(connections.resolve("rskip_ln", {"skip_lambda": 3.0}).skip_lambda, int)


# --- dropout -------------------------------------------------------------------------------------------------------


class Stub(nn.Module):
    """A dropout module that records its input."""

    def __init__(self):
        super().__init__()
        self.called_on = []

    def forward(self, f):
        self.called_on.append(f)
        return 3 * f - 1


@each_site
def test_dropout_applies_to_branch_before_gates_and_norms(name, options):
    stub = Stub()
    site = make(name, options, dropout=stub)
    x, f = inputs(3, 4, C)
    y = site(x, f)
    assert [v is f for v in stub.called_on] == [True]
    p = dict(site.named_parameters())
    torch.testing.assert_close(y, reference(name, options, p, x, 3 * f - 1), rtol=1e-10, atol=1e-10)


@each_example
def test_train_equals_eval_without_dropout(name, options):
    site = make(name, options)
    x, f = inputs(3, 4, C)
    if spec(name).is_random:
        assert not torch.equal(site.train()(x, f), site.eval()(x, f))
    else:
        assert torch.equal(site.train()(x, f), site.eval()(x, f))


# --- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1, 4), (2, 3, 2), (0, 3)], ids=str)
@each_site
def test_any_leading_shape_is_accepted(name, options, shape):
    site = make(name, options)
    x, f = inputs(*shape, C)
    y = site(x, f)
    assert y.shape == site.branch_input(x).shape == x.shape
    p = dict(site.named_parameters())
    torch.testing.assert_close(y, reference(name, options, p, x, f), rtol=1e-10, atol=1e-10)


@each_site
def test_non_contiguous_input_is_not_changed(name, options):
    site = make(name, options)
    x, f = inputs(3, 4, C)
    strided_x = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    strided_f = f.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided_x.is_contiguous()
    assert not strided_f.is_contiguous()
    before = x.clone(), f.clone()
    torch.testing.assert_close(site(strided_x, strided_f), site(x, f), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(site.branch_input(strided_x), site.branch_input(x), rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before[0])
    assert torch.equal(f, before[1])


lambdas = st.sampled_from(["xskip", "xskip_ln", "rskip_ln"])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    name=lambdas,
    lam=st.integers(1, 6),
    shape=st.lists(st.integers(1, 4), max_size=3),
    dim=st.integers(1, 9),
    mu=st.floats(0.125, 4),
    seed=st.integers(0, 99),
)
def test_formula_holds_for_any_lambda_and_shape(name, lam, shape, dim, mu, seed):
    options = {"skip_lambda": lam} if name == "rskip_ln" else {"skip_lambda": lam / 2, "branch_scale": mu}
    site = make(name, options, dim=dim)
    x, f = inputs(*shape, dim, seed=seed)
    y = site(x, f)
    expected = reference(name, options, dict(site.named_parameters()), x, f)
    torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-8)
    if shape:  # positions do not affect each other
        flipped = site(x.flip(0), f.flip(0)).flip(0)
        torch.testing.assert_close(flipped, y, rtol=1e-10, atol=1e-10)


# --- the user's view -----------------------------------------------------------------------------------------------


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "option", "value", "allowed"),
    [
        ("rskip_ln", "skip_lambda", 1.5, "integer"),
        ("hyper", "hyper_streams", 33, "an integer >= 1 and <= 32"),
        ("xskip", "skip_lambda", 0, "positive number"),
        ("mix_ln", "post_share", 25, "positive number <= 1"),
        ("sas", "sas_gate", "half", "full, single, transform"),
        ("highway", "gate_layers", 2, "needs gate_input='both'"),
        ("post_ln", "skip_lambda", 2, "not an option"),
        ("sas", "gate_bias", 2, "not an option"),
    ],
)
def test_wrong_value_is_refused(name, option, value, allowed):
    with pytest.raises(ValueError, match=allowed) as error:
        build(name, C, **{option: value})
    assert f"{option}={value!r}: " in str(error.value) and "--" not in str(error.value)
    assert f"--{option.replace('_', '-')} {value}: " in error.value.flags


@each
def test_invalid_number_is_refused(name):
    for option in connections.options(name).values():
        for value in [] if option.choices else [NAN, INF, -INF, 1e39, 10**400, "two"]:
            with pytest.raises(ValueError, match=r"number|integer") as error:
                build(name, C, **{option.name: value})
            assert f"{option.name}={value!r}: " in str(error.value)


@pytest.mark.parametrize("call", [connections.canonical, connections.options, lambda name: build(name, C)])
def test_unknown_name_is_refused(call):
    with pytest.raises(ValueError, match=r"name='postln': no such structure; similar ones: post_ln$"):
        call("postln")
    with pytest.raises(ValueError, match="name='zzzz'") as error:
        call("zzzz")
    for name in connections.names():
        assert name in str(error.value)


def test_registering_a_name_twice_is_refused():
    with pytest.raises(ValueError, match="residual 'exclusive_gate': already registered"):
        connections.register("exclusive_gate", connections.structure("post_ln"))


def test_unknown_backend_is_refused():
    assert {connections.build("post_ln", C, backend=name).backend for name in ("eager", "auto", "triton")} == {"eager"}
    with pytest.raises(connections.InvalidOption, match="backend='cuda': choose one of eager, compile"):
        connections.build("post_ln", C, backend="cuda")


DEPTHS = {"encoder": 3, "decoder": 2}


@each
def test_place_outside_its_depths_is_refused_or_does_not_matter(name: str) -> None:
    def build_at(place: Place) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        return connections.build(name, place).state_dict()

    try:
        expected = build_at(Place(C))
    except ValueError:
        with pytest.raises(connections.InvalidOption) as error:
            connections.build(name, Place(C, "stage1", depths=DEPTHS))
        assert str(error.value) == "stack='stage1': must be one of depths: encoder, decoder"
        with pytest.raises(connections.InvalidOption) as error:
            connections.build(name, Place(C, "decoder", layer=2, depths=DEPTHS))
        assert str(error.value) == "layer=2: must be < 2, the layers of decoder in depths"
    else:
        for place in (Place(C, "stage1", depths=DEPTHS), Place(C, "decoder", layer=2, depths=DEPTHS)):
            torch.testing.assert_close(build_at(place), expected, rtol=0, atol=0)


WRONG_SHAPES = [
    ((4, 2, C + 1), (4, 2, C), "state [4, 2, 9]: must "),
    ((4, 2, C + 1), (4, 2, C + 1), "f_out [4, 2, 9]: must be (..., 8), as wide as the connection"),
    ((4, 2, C), (4, 2, 2 * C), "f_out [4, 2, 16]: must be (..., 8)"),
    ((4, 2, C), (1, 2, C), "f_out [1, 2, 8]: must have the shape of the state"),
    ((4, 2, C), (2, C), "f_out [2, 8]: must have the shape of the state"),
    ((1, 2, C), (4, 2, C), "f_out [4, 2, 8]: must have the shape of the state"),
    ((4, 2, C), (), "f_out []: must be (..., 8)"),
]


@each
def test_forward_refuses_wrong_shapes_and_names_the_argument(name):
    site = build(name)
    for shape, f_shape, said in WRONG_SHAPES:
        with pytest.raises(ValueError, match=re.escape(said)):
            site(torch.zeros(shape), torch.zeros(f_shape))
    if site.most_width == C:
        x, f = inputs(4, 2, C, dtype=torch.float32)
        with pytest.raises(ValueError, match=r"state \[4, 2, 16\]: must be \(..., 8\), as wide as the connection"):
            site(torch.cat([x, x], -1), f)


@pytest.mark.parametrize(("name", "width"), [("resi_dual", 16), ("hyper", 32), ("mhc", 32)])
def test_forward_refuses_input_without_enter(name, width):
    x, f = inputs(4, 2, C, dtype=torch.float32)
    with pytest.raises(ValueError, match=rf"state \[4, 2, 8\]: must have .* at least {width}; use enter\(x\)"):
        build(name)(x, f)


def test_shape_checks_do_not_hinder_transforms():
    site = make("pre_ln", {}, dtype=torch.float32)
    torch.compiler.reset()  # the limit of recompilations counts those of earlier tests in this process
    compiled = torch.compile(site, backend="eager", fullgraph=True)
    for shape in ((4, 2, C), (5, 3, C), (7, 3, C)):
        x, f = inputs(*shape, dtype=torch.float32)
        for made in (compiled, torch.func.vmap(site)):
            torch.testing.assert_close(made(x, f), site(x, f))
    x.requires_grad_()
    y = torch.utils.checkpoint.checkpoint(site, x, f, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(site(x, f).sum(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_site
def test_autocast_accepts_branch_of_another_dtype(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Under autocast the shortcut is fp32 and the branch, the result of a matrix product, is 16-bit."""
    site = build(name, 16, **options).eval()
    x, f = torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    with torch.autocast("cpu", dtype=dtype):
        y = site(x, f.to(dtype))
    assert y.dtype == torch.float32  # the dtype of x
    torch.testing.assert_close(y, site(x, f), rtol=0.05, atol=0.05)
