"""highway: y = (1 - t)x + tF, where t = σ(xW + b) or a scalar gate of x and F."""

import torch

from fairseq_resid import connections
from structures.sas import logits
from support.formulas import assert_xavier_uniform, grid, optional_norm

EXAMPLES = [
    *grid(gate_bias=[-1, 2], residual_norm=["none", "layer"]),
    *grid(gate_bias=[-1, 2], gate_input=["both"], gate_layers=[1, 2], residual_norm=["none", "layer"]),
]
VARIANTS = {
    "layer": {"residual_norm": "layer"},
    "both": {"gate_input": "both"},
    "both 2": {"gate_input": "both", "gate_layers": 2},
}
DEEP = {"residual_norm": "layer"}
LIMITS = grid(residual_norm=["layer"], gate_input=["both"], gate_layers=[1, 2])
COEFFICIENTS = {"t"}
HAS_GATE = True


def formula(x, f, p, options, place):
    if options.gate_input == "both":
        t = torch.sigmoid(logits({1: "single", 2: "full"}[options.gate_layers], p, x, f, 0))
    else:
        t = torch.sigmoid(x @ p["gate_weight"].T + p["gate_bias"])
    return optional_norm((1 - t) * x + t * f, p, options)


def extra(c, options):
    both = {1: 2 * c + 1, 2: 2 * c * c + 2 * c + 1}[options.gate_layers]
    gate = both if options.gate_input == "both" else c * c + c
    return gate - (0 if options.residual_norm == "layer" else 2 * c)


def test_parameters_start_as_documented():
    torch.manual_seed(3)
    site = connections.build("highway", 48)
    assert_xavier_uniform(site.gate_weight.detach(), 48, 48)
    assert (site.gate_bias == -1).all()
    assert (connections.build("highway", 4, gate_bias=0.5).gate_bias == 0.5).all()


def test_exclusive_gate_is_an_alias():
    site = connections.build("exclusive_gate", 8, gate_bias=0)
    assert type(site) is type(connections.build("highway", 8))
    assert connections.canonical("exclusive_gate") == "highway"
    assert "residual=highway" in repr(site)
