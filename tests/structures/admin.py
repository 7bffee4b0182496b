"""admin: y = LN(ω ⊙ x + F), with ω initialised from a first pass or from the number of sublayers."""

import math

import pytest
import torch

from fairseq_resid import connections
from structures.wskip_ln import extra, formula, weight_sum  # noqa: F401
from support.formulas import grid, layer_norm
from support.stacks import C, Stack, branches, places

EXAMPLES = grid(admin_start=["profiled", "closed"])
LIMITS = [{"admin_start": "closed"}]
COEFFICIENTS = {"w"}


def population_variance(x):
    """Return numpy's `var` of the flattened tensor, which divides by the count, not by the count minus 1."""
    flat = x.detach().reshape(-1)
    centred = flat - flat.mean()
    return float((centred * centred).mean())


def profiled_start(x, sites):
    """Return the omegas that Admin's first pass finds, and its output.

    LN(omega x + F), omega_1 = 1, omega_(i+1)^2 = Var(omega_i x_i) + Var(F_i), and each omega is used immediately.
    Liu 2020; Transformer-Clinic `transformer_layer.py`, `adaptive-profiling`.

    Written from the source, independently of the package."""
    omegas = []
    omega = 1.0
    for f, ln_weight, ln_bias in sites:
        omegas.append(omega)
        skip = omega * x
        branch = f(x)
        x = layer_norm(skip + branch, ln_weight, ln_bias)
        omega = (population_variance(skip) + population_variance(branch)) ** 0.5
    return omegas, x


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_profiled_start_equals_its_formula(stack):
    torch.manual_seed(1)
    made = Stack("admin", stack, {"encoder": 4, "decoder": 3}).double()
    x = torch.randn(5, 2, C, dtype=torch.float64)
    omegas, expected = profiled_start(x, branches(made))
    sites = list(made.sites)
    with torch.no_grad(), connections.profiler("admin", connections.resolve("admin", {}))(sites):
        y = made(x)
    assert omegas[0] == 1 and len({round(omega, 3) for omega in omegas}) == len(omegas)
    for site, omega in zip(sites, omegas, strict=True):
        torch.testing.assert_close(site.skip_weight, torch.full((C,), omega, dtype=torch.float64))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(made(x), expected)  # the sites have their own forward method again
    assert connections.profiler("admin", connections.resolve("admin", {"admin_start": "closed"})) is None


def test_closed_start_depends_on_the_number_of_sublayers():
    sites = [connections.build("admin", place, admin_start="closed") for place in places("decoder", {"decoder": 6})]
    assert {value for site in sites for value in site.skip_weight.tolist()} == {sites[0].skip_weight[0].item()}
    assert sites[0].skip_weight[0].item() == pytest.approx((19 / math.log(19) - 1) ** 0.5)
    with pytest.raises(ValueError, match="on the model's depth"):
        connections.build("admin", C, admin_start="closed")
