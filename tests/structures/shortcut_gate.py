"""shortcut_gate: y = (1 - g)x + F, where g = σ(xW + b)."""

import torch

from fairseq_resid import connections
from support.formulas import assert_xavier_uniform, grid, optional_norm

EXAMPLES = grid(gate_bias=[-1, 2], residual_norm=["none", "layer"])
VARIANTS = {"layer": {"residual_norm": "layer"}}
DEEP = {"residual_norm": "layer"}
COEFFICIENTS = {"g"}
HAS_GATE = True


def formula(x, f, p, options, place):
    g = torch.sigmoid(x @ p["gate_weight"].T + p["gate_bias"])
    return optional_norm((1 - g) * x + f, p, options)


def extra(c, options):
    return c * c + c - (0 if options.residual_norm == "layer" else 2 * c)


def test_parameters_start_as_documented():
    torch.manual_seed(3)
    site = connections.build("shortcut_gate", 48)
    assert_xavier_uniform(site.gate_weight.detach(), 48, 48)
    assert (site.gate_bias == -1).all()
    assert (connections.build("shortcut_gate", 4, gate_bias=0.5).gate_bias == 0.5).all()
