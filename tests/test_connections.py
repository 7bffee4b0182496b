"""Every residual connection against the formula of its row in the --residual table, in plain PyTorch."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_resid import connections
from fairseq_resid.connections import Place

pytestmark = pytest.mark.once  # torch alone
ROOT = Path(__file__).resolve().parent.parent
C = 8


def grid(name, **values):
    """Every combination of the options' values."""
    return [(name, dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values())]


# Where every site of these tests stands: the last of six sublayers of a decoder.
HERE = Place(C, "decoder", "ffn", 1, True, 5, 6, {"encoder": 3, "decoder": 2})


def build(name, dim=C, dropout=0.0, **options):
    return connections.build(name, replace(HERE, dim=dim), dropout, **options)


NORMS = ["none", "layer"]
# All but those whose state is wider: test_streams.py.
EVERY = [
    *grid("post_ln"),
    *grid("pre_ln"),
    *grid("xskip", skip_lambda=[0.5, 1, 2, 3], branch_scale=[0.5, 1, 2]),
    *grid("xskip_ln", skip_lambda=[1, 2, 3], branch_scale=[1, 2, 3]),
    *grid("wskip_ln", wskip_init=[1, 2, -0.5]),
    *grid("rskip_ln", skip_lambda=[1, 2, 3, 4]),
    *grid(
        "sas",
        sas_gate=["full", "single", "transform"],
        sas_gamma=["coupled", "free"],
        sas_alpha_bias=[0, 3],
        sas_beta_bias=[0, -3],
    ),
    *grid("highway", gate_bias=[-1, 2], residual_norm=NORMS),
    *grid("highway", gate_bias=[-1, 2], gate_input=["both"], gate_layers=[1, 2], residual_norm=NORMS),
    *grid("shortcut_gate", gate_bias=[-1, 2], residual_norm=NORMS),
    *grid("linear_shortcut", residual_norm=NORMS),
    *grid("dropout_shortcut", residual_norm=NORMS),
    *grid("deep_norm"),
    *grid("rezero"),
    *grid("keel"),
    *grid("layer_scale"),
    *grid("sandwich_ln"),
    *grid("res_post_norm"),
    *grid("scaled_pre_ln"),
    *grid("mix_ln", post_share=[0.25, 1]),
    *grid("admin", admin_start=["profiled", "closed"]),
    *grid("b2t"),
]
# One of each structure, for what no value of an option can change.
SHAPES = [
    *[(name, {}) for name in ("post_ln", "pre_ln", "xskip", "xskip_ln", "wskip_ln", "rskip_ln", "highway")],
    ("rskip_ln", {"skip_lambda": 4}),
    *grid("sas", sas_gate=["full", "single", "transform"], sas_gamma=["coupled", "free"]),
    *[(name, {}) for name in ("shortcut_gate", "linear_shortcut", "dropout_shortcut")],
    *[(name, {"residual_norm": "layer"}) for name in ("highway", "shortcut_gate", "linear_shortcut")],
    ("dropout_shortcut", {"residual_norm": "layer"}),
    *[
        (name, {})
        for name in ("rezero", "deep_norm", "keel", "layer_scale", "sandwich_ln", "res_post_norm", "scaled_pre_ln")
    ],
    *grid("highway", gate_input=["both"], gate_layers=[1, 2]),
    *[(name, {}) for name in ("admin", "b2t")],
    *grid("mix_ln", post_share=[0.25, 1]),
]


def label(value):
    return "-".join(f"{key}={option}" for key, option in value.items()) if isinstance(value, dict) else value


every = pytest.mark.parametrize(("name", "options"), EVERY, ids=label)
shapes = pytest.mark.parametrize(("name", "options"), SHAPES, ids=label)


def make(name, options, dim=C, dtype=torch.float64, dropout=0.0, noise=0.3):
    """A connection in eval mode whose parameters all differ from their start values."""
    torch.manual_seed(1)
    site = build(name, dim, dropout, **options).to(dtype).eval()
    with torch.no_grad():
        for parameter in site.parameters():
            parameter += noise * torch.randn_like(parameter)
    return site


def inputs(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


# --- the reference, written from design.md's table -----------------------------------------------------------------


def norm(v, p, name="norm"):
    centred = v - v.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * p[f"{name}.weight"] + p[f"{name}.bias"]


def sas_logits(form, p, x, f, gate):
    """S_g(x, F), from the stored parameters of gate g: α, β and, when free, γ are stored in this order."""
    c = x.size(-1)
    rows = slice(gate * c, (gate + 1) * c)
    both = torch.cat([x, f], dim=-1)
    if form == "full":
        hidden = torch.tanh(both @ p["gate.hidden_weight"][rows].T + p["gate.hidden_bias"][rows])
        return (hidden @ p["gate.output_weight"][gate] + p["gate.output_bias"][gate]).unsqueeze(-1)
    if form == "single":
        return (both @ p["gate.weight"][gate] + p["gate.bias"][gate]).unsqueeze(-1)
    return x @ p["gate.weight"][rows].T + p["gate.bias"][rows]


def reference(name, options, p, x, f):
    lam, mu = options.get("skip_lambda"), options.get("branch_scale", 1)
    last = norm if options.get("residual_norm") == "layer" else lambda v, _: v
    if name == "post_ln":
        return norm(x + f, p)
    if name == "pre_ln":
        return x + f
    if name == "xskip":
        return (lam or 1) * x + mu * f
    if name == "xskip_ln":
        return norm((lam or 2) * x + mu * f, p)
    if name in ("wskip_ln", "admin"):
        return norm(p["skip_weight"] * x + f, p)
    if name == "rskip_ln":
        y = norm(x + f, p)
        for k in range(2, (lam or 2) + 1):
            y = norm(x + y, p, f"recursive_norms.{k - 2}")
        return y
    if name == "sas":
        form = options.get("sas_gate", "full")
        a, b = (torch.sigmoid(sas_logits(form, p, x, f, gate)) for gate in (0, 1))
        free = options.get("sas_gamma") == "free"
        c = torch.sigmoid(sas_logits(form, p, x, f, 2)) if free else (1 - a) * (1 - b)
        return a * x + b * f + c * norm(x + f, p)
    if name == "deep_norm":
        return norm(6**0.25 * x + f, p)
    if name == "rezero":
        return x + p["branch_scalar"] * f
    if name == "keel":
        return norm(6 * x + f, p)
    if name == "layer_scale":
        return x + p["branch_weight"] * f
    if name == "sandwich_ln":
        return x + norm(f, p, "outer_norm")
    if name == "res_post_norm":
        return x + norm(f, p)
    if name == "scaled_pre_ln":
        return x + f
    if name == "mix_ln":
        return norm(x + f, p) if options.get("post_share") == 1 else x + f
    if name == "linear_shortcut":
        return last(x @ p["shortcut_weight"].T + p["shortcut_bias"] + f, p)
    if name == "dropout_shortcut":  # in eval mode
        return last(x + f, p)
    if name == "b2t":  # the last site of a layer, which is its only one here
        return norm(x + f + x, p)
    if options.get("gate_input") == "both":
        gate = torch.sigmoid(sas_logits({1: "single", 2: "full"}[options["gate_layers"]], p, x, f, 0))
        return last((1 - gate) * x + gate * f, p)
    gate = torch.sigmoid(x @ p["gate_weight"].T + p["gate_bias"])
    return last({"highway": (1 - gate) * x + gate * f, "shortcut_gate": (1 - gate) * x + f}[name], p)


def seen(name, options, p, x):
    """What the branch sees."""
    if name in ("pre_ln", "layer_scale", "sandwich_ln") or (name == "mix_ln" and options.get("post_share") != 1):
        return norm(x, p)
    if name == "scaled_pre_ln":
        return norm(x, p) / 2**0.5
    return norm(x, p, "inner_norm") if name == "keel" else x


@every
def test_equation(name, options):
    site = make(name, options)
    p = dict(site.named_parameters())
    x, f = inputs(3, 4, C)
    torch.testing.assert_close(site(x, f), reference(name, options, p, x, f), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(site.branch_input(x), seen(name, options, p, x), rtol=1e-10, atol=1e-10)


@every
def test_gradients_equal_those_of_the_equation(name, options):
    site = make(name, options)
    p = dict(site.named_parameters())
    x, f = (v.requires_grad_() for v in inputs(3, 4, C))
    weight = torch.linspace(-1, 2, 3 * 4 * C, dtype=torch.float64).view(3, 4, C)

    def gradients(y):
        sources = [x, f, *p.values()]
        return torch.autograd.grad((y * weight).sum(), sources, allow_unused=True, materialize_grads=True)

    ours, theirs = gradients(site(x, f)), gradients(reference(name, options, p, x, f))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@shapes
def test_gradcheck(name, options):
    site = make(name, options, dim=4)
    keys, parameters = zip(*site.named_parameters(), strict=True) if list(site.parameters()) else ((), ())

    def call(x, f, *values):
        return torch.func.functional_call(site, dict(zip(keys, values, strict=True)), (x, f))

    x, f = (v.requires_grad_() for v in inputs(2, 2, 4))
    assert torch.autograd.gradcheck(call, (x, f, *parameters))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@every
def test_dtype_out_is_dtype_in(name, options, dtype):
    site = make(name, options, dtype=dtype)
    x, f = inputs(3, 4, C, dtype=dtype)
    y = site(x, f)
    assert y.dtype == site.branch_input(x).dtype == dtype
    p = {key: value.double() for key, value in site.named_parameters()}
    tolerance = 24 * torch.finfo(dtype).eps
    expected = reference(name, options, p, x.double(), f.double())
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["post_ln", "xskip_ln", "wskip_ln", "rskip_ln", "sas"])
def test_statistics_of_fp16_are_not_in_fp16(name):
    """Squares of 600 overflow fp16; the norm must not."""
    site = make(name, {}, dtype=torch.float16, noise=0.0)
    x, f = (300 * v for v in inputs(3, 4, C, dtype=torch.float16))
    p = {key: value.double() for key, value in site.named_parameters()}
    assert (x + f).abs().max() > 500
    y = site(x, f).double()
    assert y.isfinite().all()
    torch.testing.assert_close(y, reference(name, {}, p, x.double(), f.double()), rtol=0.01, atol=0.02)


# --- identities ----------------------------------------------------------------------------------------------------


def force(form, alpha, beta):
    """A site whose gates are constants: sigmoid(±1000) is 0 or 1 without rounding."""
    site = make("sas", {"sas_gate": form})
    gate = dict(site.gate.named_parameters())
    bias = gate["output_bias" if form == "full" else "bias"]
    with torch.no_grad():
        gate["output_weight" if form == "full" else "weight"].zero_()
        bias.copy_(torch.tensor([alpha, beta]).repeat_interleave(bias.numel() // 2))
    return site


OFF, ON, Z = -1000.0, 1000.0, 0.7
BETA = 1 / (1 + math.exp(-Z))
IDENTITIES = {
    "LN(x+F)": (OFF, OFF, lambda x, f, n: n),
    "F": (OFF, ON, lambda x, f, n: f),
    "x": (ON, OFF, lambda x, f, n: x),
    "x+F": (ON, ON, lambda x, f, n: x + f),
    "x+βF": (ON, Z, lambda x, f, n: x + BETA * f),
    "αx+F": (Z, ON, lambda x, f, n: BETA * x + f),
    "(1-β)x+βF+β(1-β)LN": (-Z, Z, lambda x, f, n: (1 - BETA) * x + BETA * f + BETA * (1 - BETA) * n),
}


@pytest.mark.parametrize("form", ["full", "single", "transform"])
@pytest.mark.parametrize("case", IDENTITIES)
def test_special_cases_of_sas(case, form):
    alpha, beta, expected = IDENTITIES[case]
    site = force(form, alpha, beta)
    x, f = inputs(3, 4, C)
    normalised = norm(x + f, dict(site.named_parameters()))
    torch.testing.assert_close(site(x, f), expected(x, f, normalised), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lam", [2, 3, 4])
def test_effective_ratio_of_rskip(lam):
    """x to F in what the last norm sees is 1 + Σ_{i<λ} Π_{j≤i} σ_j/w_j, the statistics held still.

    Measured: derivatives of s_λ = x + y_{λ-1} along directions that leave every mean and deviation unchanged, where
    s_λ changes elementwise: by A ⊙ dx and by B ⊙ dF. The ratio is A / B.
    """
    dim = 24
    torch.manual_seed(2)
    site = connections.build("rskip_ln", dim, skip_lambda=lam).double()
    with torch.no_grad():
        for key, parameter in site.named_parameters():
            parameter.copy_(torch.rand(dim) + 0.5 if "weight" in key else torch.randn(dim))
    shorter = {}
    for k in range(1, lam):
        shorter[k] = connections.build("rskip_ln", dim, skip_lambda=k).double()
        shorter[k].load_state_dict({key: site.state_dict()[key] for key in shorter[k].state_dict()})

    def seen_by_norm(k, x, f):
        return x + (f if k == 1 else shorter[k - 1](x, f))

    def statistics(x, f):
        sums = [seen_by_norm(k, x, f) for k in range(1, lam)]
        return torch.stack([v.mean() for v in sums] + [v.var(unbiased=False) for v in sums])

    x, f = inputs(dim)
    moved = []
    for constraint, change in zip(
        torch.autograd.functional.jacobian(statistics, (x, f)),
        torch.autograd.functional.jacobian(lambda x, f: seen_by_norm(lam, x, f), (x, f)),
        strict=True,
    ):
        still = torch.linalg.svd(constraint)[2][2 * (lam - 1) :].T  # directions that no statistic notices
        direction = still @ torch.randn(still.size(1), dtype=torch.float64)
        moved.append(change @ direction / direction)
    expected, product = torch.ones(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
    norms = [site.norm, *site.recursive_norms]
    for k in range(1, lam):
        deviation = (seen_by_norm(k, x, f).var(unbiased=False) + 1e-5).sqrt()
        product = product * deviation / norms[k - 1].weight.detach()
        expected = expected + product
    torch.testing.assert_close(moved[0] / moved[1], expected, rtol=1e-6, atol=1e-6)


def test_rskip_with_one_norm_is_post_ln_bitwise():
    recursive, plain = make("rskip_ln", {"skip_lambda": 1}, dtype=torch.float32), make("post_ln", {}).float()
    plain.load_state_dict(recursive.state_dict())
    x, f = inputs(5, 3, C, dtype=torch.float32)
    assert torch.equal(recursive(x, f), plain(x, f))


# --- parameters ----------------------------------------------------------------------------------------------------


def gate_parameters(options, c):
    gates = 3 if options.get("sas_gamma") == "free" else 2
    each = {"full": 2 * c * c + c + c + 1, "single": 2 * c + 1, "transform": c * c + c}
    return gates * each[options.get("sas_gate", "full")]


# Parameters per site beyond the 2C of stock's norm.
EXTRA = {
    "post_ln": lambda o, c: 0,
    "pre_ln": lambda o, c: 0,
    "xskip": lambda o, c: -2 * c,
    "xskip_ln": lambda o, c: 0,
    "wskip_ln": lambda o, c: c,
    "rskip_ln": lambda o, c: 2 * c * (o.get("skip_lambda", 2) - 1),
    "sas": gate_parameters,
    "highway": lambda o, c: (
        ({1: 2 * c + 1, 2: 2 * c * c + 2 * c + 1}[o["gate_layers"]] if "gate_input" in o else c * c + c) - 2 * c
    ),
    "shortcut_gate": lambda o, c: c * c + c - 2 * c,
    "linear_shortcut": lambda o, c: c * c + c - 2 * c,
    "dropout_shortcut": lambda o, c: -2 * c,
    "deep_norm": lambda o, c: 0,
    "keel": lambda o, c: 2 * c,
    "rezero": lambda o, c: 1 - 2 * c,
    "layer_scale": lambda o, c: c,
    "sandwich_ln": lambda o, c: 2 * c,
    "res_post_norm": lambda o, c: 0,
    "scaled_pre_ln": lambda o, c: 0,
    "mix_ln": lambda o, c: 0,
    "resi_dual": lambda o, c: 0,
    "mhc": lambda o, c: 4 * c + 4 * c * (4 + 4 + 16) + 4 + 4 + 16 + 3,
    "hyper": lambda o, c: 2 * c + 4 * 5 + 4 + 6 * c + 2,
    "admin": lambda o, c: c,
    "b2t": lambda o, c: 0,
    "attn_residual": lambda o, c: 2 * c,
    "dense_former": lambda o, c: 3,  # X_0, X_1 and X_2
}
ALIASES = {"exclusive_gate", "peri_ln"}


@pytest.mark.parametrize("c", [1, 6, 64])
@every
def test_number_of_parameters(name, options, c):
    extra = EXTRA[name](options, c) + (2 * c if options.get("residual_norm") == "layer" else 0)
    site = build(name, c, **options)
    assert sum(p.numel() for p in site.parameters()) == 2 * c + extra
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
def test_number_of_parameters_in_figures(name, options, extra):
    assert sum(p.numel() for p in connections.build(name, 64, **options).parameters()) == 128 + extra


def test_the_table_is_complete():
    assert set(connections.names()) == {*EXTRA, *ALIASES}
    assert connections.all_options().keys() == VALUES.keys()


def uniform(values, fan_in, fan_out):
    """Xavier-uniform by these fans: within the bound, nearly reaching it, and with its spread."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert values.abs().max() <= bound
    assert values.abs().max() > 0.97 * bound
    assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert abs(values.mean()) < 0.15 * bound


@pytest.mark.parametrize("gamma", ["coupled", "free"])
@pytest.mark.parametrize("form", ["full", "single", "transform"])
def test_start_values_of_sas(form, gamma):
    torch.manual_seed(3)
    c, starts = 3, [3.0, -3.0, 0.0][: 3 if gamma == "free" else 2]
    options = {"sas_gate": form, "sas_gamma": gamma, "sas_alpha_bias": 3, "sas_beta_bias": -3}
    sites = [dict(connections.build("sas", c, **options).named_parameters()) for _ in range(150)]

    def stored(key):
        return torch.stack([site[key].detach() for site in sites])

    for gate, start in enumerate(starts):
        rows = slice(gate * c, (gate + 1) * c)
        if form == "full":
            uniform(stored("gate.hidden_weight")[:, rows], 2 * c, c)
            uniform(stored("gate.output_weight")[:, gate], c, 1)
            assert not stored("gate.hidden_bias").any()
            assert (stored("gate.output_bias")[:, gate] == start).all()
        elif form == "single":
            uniform(stored("gate.weight")[:, gate], 2 * c, 1)
            assert (stored("gate.bias")[:, gate] == start).all()
        else:
            uniform(stored("gate.weight")[:, rows], c, c)
            assert (stored("gate.bias")[:, rows] == start).all()
    assert (stored("norm.weight") == 1).all()
    assert not stored("norm.bias").any()


def test_start_values_of_the_other_variants():
    torch.manual_seed(3)
    for name in ("highway", "shortcut_gate"):
        site = connections.build(name, 48)
        uniform(site.gate_weight.detach(), 48, 48)
        assert (site.gate_bias == -1).all()
        assert (connections.build(name, 4, gate_bias=0.5).gate_bias == 0.5).all()
    linear = connections.build("linear_shortcut", 48)
    uniform(linear.shortcut_weight.detach(), 48, 48)
    assert not linear.shortcut_bias.any()
    assert (connections.build("wskip_ln", 4).skip_weight == 1).all()
    assert (connections.build("wskip_ln", 4, wskip_init=2).skip_weight == 2).all()
    assert not connections.build("sas", 4).gate.output_bias.any()
    for module in connections.build("rskip_ln", 4, skip_lambda=3).modules():
        if isinstance(module, nn.LayerNorm):
            assert module.eps == 1e-5
            assert (module.weight == 1).all()
            assert not module.bias.any()


def test_defaults():
    assert connections.resolve("rskip_ln", {}).values() == {"skip_lambda": 2}
    assert connections.resolve("xskip_ln", {}).values() == {"skip_lambda": 2, "branch_scale": 1}
    assert connections.resolve("xskip", {}).values() == {"skip_lambda": 1, "branch_scale": 1}
    assert connections.resolve("wskip_ln", {"wskip_init": None}).values() == {"wskip_init": 1}
    gated = {"gate_bias": -1, "residual_norm": "none"}
    assert connections.resolve("shortcut_gate", {}).values() == gated
    highway = {**gated, "gate_input": "shortcut", "gate_layers": 1}
    assert connections.resolve("exclusive_gate", {}).values() == highway
    sas = {"sas_gate": "full", "sas_gamma": "coupled", "sas_alpha_bias": 0, "sas_beta_bias": 0}
    assert connections.resolve("sas", {}).values() == sas
    assert connections.resolve("linear_shortcut", {}) == connections.resolve("dropout_shortcut", {})
    assert isinstance(connections.resolve("rskip_ln", {"skip_lambda": 3.0}).skip_lambda, int)


# --- dropout -------------------------------------------------------------------------------------------------------


class Stub(nn.Module):
    """A dropout that tells whether, and on what, it was called."""

    def __init__(self):
        super().__init__()
        self.called_on = []

    def forward(self, f):
        self.called_on.append(f)
        return 3 * f - 1


@shapes
def test_dropout_is_on_the_branch_before_gates_and_norms(name, options):
    stub = Stub()
    site = make(name, options, dropout=stub)
    x, f = inputs(3, 4, C)
    y = site(x, f)
    assert [v is f for v in stub.called_on] == [True]
    p = dict(site.named_parameters())
    torch.testing.assert_close(y, reference(name, options, p, x, 3 * f - 1), rtol=1e-10, atol=1e-10)


def test_dropout_as_a_probability():
    site = connections.build("xskip", C, 0.25)
    zeros = torch.zeros(200, C)
    y = site(zeros, torch.ones(200, C))
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert torch.equal(site.eval()(zeros, zeros + 1), zeros + 1)


@every
def test_train_equals_eval_without_dropout(name, options):
    site = make(name, options)
    x, f = inputs(3, 4, C)
    if name == "dropout_shortcut":
        assert not torch.equal(site.train()(x, f), site.eval()(x, f))
    else:
        assert torch.equal(site.train()(x, f), site.eval()(x, f))


def test_dropout_shortcut_drops_half_of_the_shortcut_only():
    site = make("dropout_shortcut", {}).train()
    x, f = inputs(50, 40, C)
    kept = (site(x, f) - f) / x
    zero, double = kept.abs() < 1e-6, (kept - 2).abs() < 1e-6
    assert (zero | double).all()
    assert zero.double().mean().item() == pytest.approx(0.5, abs=0.02)


# --- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 1), (1, 4), (3, 4), (2, 3, 2), (0, 3)], ids=str)
@shapes
def test_every_leading_shape(name, options, shape):
    site = make(name, options)
    x, f = inputs(*shape, C)
    y = site(x, f)
    assert y.shape == site.branch_input(x).shape == x.shape
    p = dict(site.named_parameters())
    torch.testing.assert_close(y, reference(name, options, p, x, f), rtol=1e-10, atol=1e-10)


@shapes
def test_non_contiguous_input_is_left_alone(name, options):
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
def test_any_lambda_and_shape(name, lam, shape, dim, mu, seed):
    options = {"skip_lambda": lam} if name == "rskip_ln" else {"skip_lambda": lam / 2, "branch_scale": mu}
    site = make(name, options, dim=dim)
    x, f = inputs(*shape, dim, seed=seed)
    y = site(x, f)
    expected = reference(name, options, dict(site.named_parameters()), x, f)
    torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-8)
    if shape:  # no position sees another one
        flipped = site(x.flip(0), f.flip(0)).flip(0)
        torch.testing.assert_close(flipped, y, rtol=1e-10, atol=1e-10)


@shapes
def test_torchscript(name, options):
    site = make(name, options, dtype=torch.float32)
    scripted = torch.jit.script(site)
    x, f = inputs(3, 4, C, dtype=torch.float32)
    torch.testing.assert_close(scripted(x, f), site(x, f))
    torch.testing.assert_close(scripted.branch_input(x), site.branch_input(x))


# --- what a user sees ----------------------------------------------------------------------------------------------

VALUES = {
    "skip_lambda": 3,
    "branch_scale": 2,
    "wskip_init": 2,
    "gate_bias": -2,
    "residual_norm": "layer",
    "sas_gate": "single",
    "sas_gamma": "free",
    "sas_alpha_bias": 3,
    "sas_beta_bias": -3,
    "post_share": 0.5,
    "hyper_streams": 2,
    "hyper_weights": "static",
    "admin_start": "closed",
    "block_size": 2,
    "gate_input": "both",
    "gate_layers": 2,
}
FOREIGN = [(name, option) for name in EXTRA for option in VALUES if option not in connections.options(name)]


@pytest.mark.parametrize(("name", "option"), FOREIGN)
def test_option_of_another_variant(name, option):
    with pytest.raises(ValueError, match="not an option") as error:
        build(name, C, **{option: VALUES[option]})
    text = str(error.value)
    assert f"--{option.replace('_', '-')} {VALUES[option]}" in text
    assert name in text
    for own in connections.options(name):
        assert "--" + own.replace("_", "-") in text


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "option", "value", "allowed"),
    [
        *[("rskip_ln", "skip_lambda", value, "integer") for value in (0, -1, 1.5, NAN, INF, "two")],
        *[("xskip", "skip_lambda", value, "positive number") for value in (0, -1, NAN, INF)],
        *[("xskip_ln", "skip_lambda", value, "positive number") for value in (0, -1, NAN, INF)],
        *[("xskip_ln", "branch_scale", value, "positive number") for value in (0, -1, NAN, INF)],
        ("xskip", "skip_lambda", "two", "number"),
        ("xskip", "branch_scale", 0, "positive number"),
        ("wskip_ln", "wskip_init", NAN, "finite number"),
        *[("mix_ln", "post_share", value, "positive number <= 1") for value in (0, 1.5, 25)],
        ("highway", "gate_bias", INF, "finite number"),
        ("shortcut_gate", "gate_bias", NAN, "finite number"),
        ("sas", "sas_alpha_bias", INF, "finite number"),
        ("sas", "sas_beta_bias", NAN, "finite number"),
        ("sas", "sas_gate", "half", "full, single, transform"),
        ("sas", "sas_gamma", "fixed", "coupled, free"),
        ("highway", "gate_layers", 3, "an integer >= 1 and <= 2"),
        ("highway", "gate_layers", 2, "needs --gate-input both"),
        ("attn_residual", "block_size", 0, "an integer >= 1"),
        ("admin", "admin_start", "open", "profiled, closed"),
        *[(name, "residual_norm", "batch", "none, layer") for name in ("highway", "linear_shortcut")],
    ],
)
def test_wrong_value(name, option, value, allowed):
    with pytest.raises(ValueError, match=allowed) as error:
        build(name, C, **{option: value})
    assert f"--{option.replace('_', '-')} {value}" in str(error.value)


@pytest.mark.parametrize("call", [connections.canonical, connections.options, lambda name: build(name, C)])
def test_unknown_name(call):
    with pytest.raises(ValueError, match="--residual postln") as error:
        call("postln")
    for name in (*EXTRA, *ALIASES):
        assert name in str(error.value)


def test_another_norm_has_no_kernel():
    """The kernels compute a LayerNorm."""
    site = connections.build("post_ln", Place(C, norm=nn.RMSNorm))
    assert site.backend == "eager" and isinstance(site.norm, nn.RMSNorm)
    assert connections.build("post_ln", C).backend == "auto"


def test_width_below_one():
    with pytest.raises(ValueError, match=r"dim 0.*at least 1"):
        connections.build("post_ln", 0)


def test_registering_a_name_twice():
    with pytest.raises(ValueError, match=r"exclusive_gate.*twice"):
        connections.register("exclusive_gate", connections.structure("post_ln"))


def test_alias():
    site = connections.build("exclusive_gate", C, gate_bias=0)
    assert type(site) is type(connections.build("highway", C))
    assert connections.canonical("exclusive_gate") == "highway"
    assert "residual=highway" in repr(site)


@every
def test_repr_shows_the_structure(name, options):
    first = repr(build(name, C, **options))
    assert f"{C}, residual={name}" in first
    for key, value in connections.resolve(name, options).values().items():
        assert f"{key}={value}" in first


def test_without_fairseq():
    """Where fairseq, hydra and omegaconf are not installed, connections and ops import and train a plain model."""
    script = f"""
import sys
ABSENT = ("fairseq", "hydra", "omegaconf")

class Filter:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Filter(finder) for finder in sys.meta_path]
sys.path.insert(0, {str(ROOT)!r})
import torch
from dataclasses import replace
from fairseq_resid import connections, ops
assert not [name for name in sys.modules if name.split(".")[0] in ABSENT]
x = torch.randn(4, 8)
assert ops.recursive_layer_norm(x, x, [torch.ones(8)], [torch.zeros(8)], 1e-5).shape == x.shape

class Model(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        places = [connections.Place(8, "encoder", "ffn", i, True, i, 2, {{"encoder": 2}}) for i in range(2)]
        self.sites = torch.nn.ModuleList(connections.build(name, place) for place in places)
        has_norm = connections.resolve_final_norm(name, None)
        self.end = connections.build_stream(name, replace(places[1], index=2), has_norm)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.out = torch.nn.Linear(8, 2)
    def forward(self, x):
        for site, branch in zip(self.sites, self.branches):
            x = site.enter(x)
            x = site(x, branch(site.branch_input(x)).relu())
        return self.out(self.end(x) if self.end else x)

for name in connections.names():
    torch.manual_seed(0)
    model, data = Model(name), torch.randn(64, 8)
    target = (data[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    before = {{key: value.clone() for key, value in model.named_parameters()}}
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(torch.nn.functional.cross_entropy(model(data), target))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0], (name, losses)
    for key, value in model.named_parameters():
        assert not torch.equal(value, before[key]), (name, key)
print("trained", len(connections.names()))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["trained", "28"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in EVERY))
def test_autocast_takes_a_branch_of_another_dtype(name: str, dtype: torch.dtype) -> None:
    """Under autocast the shortcut is fp32 and the branch, out of a matrix product, 16-bit."""
    site = build(name, 16).eval()
    x, f = torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    with torch.autocast("cpu", dtype=dtype):
        y = site(x, f.to(dtype))
    torch.testing.assert_close(y.float(), site(x, f), rtol=0.05, atol=0.05)
