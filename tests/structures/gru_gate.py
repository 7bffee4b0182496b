"""gru_gate: one step of a gated recurrent unit, with the shortcut as its state."""

import torch

from fairseq_resid import connections
from support.formulas import assert_xavier_uniform, norm

COEFFICIENTS = {"z"}
HAS_GATE = True


def branch_input(x, p, options, place):
    return norm(x, p)


def formula(x, f, p, options, place):
    f = f.clamp(min=0)
    (w_r, w_z, w_h), (u_r, u_z) = p["branch_weight"].chunk(3), p["shortcut_weight"].chunk(2)
    r = torch.sigmoid(f @ w_r.T + x @ u_r.T)
    z = torch.sigmoid(f @ w_z.T + x @ u_z.T + p["gate_bias"])
    return x + z * (torch.tanh(f @ w_h.T + (r * x) @ p["candidate_weight"].T) - x)


def test_stated_formula_contains_the_relu():
    """The branch is F in the formula of every other structure: only this one applies a ReLU to it."""
    stated = connections.structure("gru_gate").formula
    assert "W ReLU(F)" in stated and "gates r and z from x and ReLU(F)" in stated


def extra(c, options):
    return 6 * c * c + c


def test_parameters_start_as_documented():
    torch.manual_seed(3)
    site = connections.build("gru_gate", 48)
    weights = (*site.branch_weight.chunk(3), *site.shortcut_weight.chunk(2), site.candidate_weight)
    for weight in weights:
        assert_xavier_uniform(weight.detach(), 48, 48)
    assert (site.gate_bias == -2).all()
    assert (connections.build("gru_gate", 4, gate_bias=0.5).gate_bias == 0.5).all()
