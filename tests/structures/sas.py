"""sas: y = αx + βF + γ LN(x + F), with gates α, β and γ = (1 - α)(1 - β), or a third gate."""

import math

import pytest
import torch

from fairseq_resid import connections
from support.formulas import assert_xavier_uniform, grid, norm
from support.stacks import C, inputs, make

EXAMPLES = grid(
    sas_gate=["full", "single", "transform"],
    sas_gamma=["coupled", "free"],
    sas_alpha_bias=[0, 3],
    sas_beta_bias=[0, -3],
)
VARIANTS = {
    "free": {"sas_gamma": "free"},
    "single": {"sas_gate": "single"},
    "transform": {"sas_gate": "transform"},
    "single free": {"sas_gate": "single", "sas_gamma": "free"},
    "transform free": {"sas_gate": "transform", "sas_gamma": "free"},
}
LIMITS = [{"sas_gate": "single"}, {"sas_gate": "transform", "sas_gamma": "free"}]
COEFFICIENTS = {"alpha", "beta", "gamma"}
HAS_GATE = True


def logits(form, p, x, f, gate):
    """Return S_g(x, F), from the stored parameters of gate g. The order of the gates is α, β and, if it is free, γ."""
    c = x.size(-1)
    rows = slice(gate * c, (gate + 1) * c)
    both = torch.cat([x, f], dim=-1)
    if form == "full":
        hidden = torch.tanh(both @ p["gate.hidden_weight"][rows].T + p["gate.hidden_bias"][rows])
        return (hidden @ p["gate.output_weight"][gate] + p["gate.output_bias"][gate]).unsqueeze(-1)
    if form == "single":
        return (both @ p["gate.weight"][gate] + p["gate.bias"][gate]).unsqueeze(-1)
    return x @ p["gate.weight"][rows].T + p["gate.bias"][rows]


def formula(x, f, p, options, place):
    a, b = (torch.sigmoid(logits(options.sas_gate, p, x, f, gate)) for gate in (0, 1))
    free = options.sas_gamma == "free"
    c = torch.sigmoid(logits(options.sas_gate, p, x, f, 2)) if free else (1 - a) * (1 - b)
    return a * x + b * f + c * norm(x + f, p)


def extra(c, options):
    gates = 3 if options.sas_gamma == "free" else 2
    return gates * {"full": 2 * c * c + c + c + 1, "single": 2 * c + 1, "transform": c * c + c}[options.sas_gate]


def force(form, alpha, beta):
    """Return a site whose gates are constant: sigmoid(±1000) is exactly 0 or 1."""
    site = make("sas", {"sas_gate": form})
    gate = dict(site.gate.named_parameters())
    bias = gate["output_bias" if form == "full" else "bias"]
    with torch.no_grad():
        gate["output_weight" if form == "full" else "weight"].zero_()
        bias.copy_(torch.tensor([alpha, beta]).repeat_interleave(bias.numel() // 2))
    return site


OFF, ON, Z = -1000.0, 1000.0, 0.7
BETA = 1 / (1 + math.exp(-Z))
IDENTITIES = {  # SAS paper, table 2
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
def test_fixed_gates_give_the_special_cases(case, form):
    alpha, beta, expected = IDENTITIES[case]
    site = force(form, alpha, beta)
    x, f = inputs(3, 4, C)
    normalised = norm(x + f, dict(site.named_parameters()))
    torch.testing.assert_close(site(x, f), expected(x, f, normalised), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gamma", ["coupled", "free"])
@pytest.mark.parametrize("form", ["full", "single", "transform"])
def test_parameters_start_as_documented(form, gamma):
    torch.manual_seed(3)
    c, starts = 3, [3.0, -3.0, 0.0][: 3 if gamma == "free" else 2]
    options = {"sas_gate": form, "sas_gamma": gamma, "sas_alpha_bias": 3, "sas_beta_bias": -3}
    sites = [dict(connections.build("sas", c, **options).named_parameters()) for _ in range(150)]

    def stored(key):
        return torch.stack([site[key].detach() for site in sites])

    for gate, start in enumerate(starts):
        rows = slice(gate * c, (gate + 1) * c)
        if form == "full":
            assert_xavier_uniform(stored("gate.hidden_weight")[:, rows], 2 * c, c)
            assert_xavier_uniform(stored("gate.output_weight")[:, gate], c, 1)
            assert not stored("gate.hidden_bias").any()
            assert (stored("gate.output_bias")[:, gate] == start).all()
        elif form == "single":
            assert_xavier_uniform(stored("gate.weight")[:, gate], 2 * c, 1)
            assert (stored("gate.bias")[:, gate] == start).all()
        else:
            assert_xavier_uniform(stored("gate.weight")[:, rows], c, c)
            assert (stored("gate.bias")[:, rows] == start).all()
    assert (stored("norm.weight") == 1).all()
    assert not stored("norm.bias").any()


def test_biases_start_at_3_and_minus_3_by_default():
    assert connections.build("sas", 4).gate.output_bias.tolist() == [3, -3]
