"""--norm: each norm equals its formula, and every structure works with each norm and creates no other norms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.connections import Place
from fairseq_resid.connections.core.norms import NORMS, divisor
from support.stacks import C, Stack, inputs, move
from support.structures import each

pytestmark = pytest.mark.once  # needs only torch

# Names of the parameters in checkpoints, in order. Released names never change.
PARAMETERS = {
    "layer": ["weight", "bias"],
    "rms": ["weight"],
    "scale": ["weight"],
    "dyt": ["alpha", "weight", "bias"],
    "derf": ["alpha", "shift", "weight", "bias"],
}
DEPTHS = {"encoder": 4, "decoder": 3}
each_norm = pytest.mark.parametrize("norm", NORMS)


def formula(norm: str, p: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the norm of x, computed in plain PyTorch."""
    if norm == "layer":
        centred = x - x.mean(-1, keepdim=True)
        return p["weight"] * centred / ((centred**2).mean(-1, keepdim=True) + 1e-5) ** 0.5 + p["bias"]
    if norm == "rms":
        return p["weight"] * x / ((x**2).mean(-1, keepdim=True) + 1e-5) ** 0.5
    if norm == "scale":
        return p["weight"] * x / (x**2).sum(-1, keepdim=True) ** 0.5
    if norm == "dyt":
        return p["weight"] * (p["alpha"] * x).tanh() + p["bias"]
    return p["weight"] * torch.erf(p["alpha"] * x + p["shift"]) + p["bias"]


@each_norm
def test_norm_equals_its_formula_and_passes_gradcheck(norm: str) -> None:
    torch.manual_seed(1)
    made = move(NORMS[norm](C).double())
    x = inputs(5, 3, C)[0].requires_grad_()
    p = dict(made.named_parameters())
    torch.testing.assert_close(made(x), formula(norm, p, x), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(made, x)


@each_norm
def test_parameters_have_their_names_and_initial_values(norm: str) -> None:
    made = NORMS[norm](C)
    assert list(dict(made.named_parameters())) == PARAMETERS[norm]
    starts = {"weight": math.sqrt(C) if norm == "scale" else 1.0, "bias": 0.0, "alpha": 0.5, "shift": 0.0}
    for name, parameter in made.named_parameters():
        assert (parameter == starts[name]).all(), name


@each_norm
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_is_kept_and_large_values_stay_finite(norm: str, dtype: torch.dtype) -> None:
    made = NORMS[norm](C).to(dtype)
    x = torch.full((2, C), 65_000.0 if dtype == torch.float16 else 1e17, dtype=dtype)
    x[0, 0] = -x[0, 0]
    for given in (x, torch.zeros_like(x)):
        y = made(given)
        assert y.dtype == dtype and y.isfinite().all()


class Plain(nn.Module):
    """A LayerNorm that is not nn.LayerNorm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return formula("layer", {"weight": self.weight, "bias": self.bias}, x)


def moved(name: str, norm: Any) -> Any:
    torch.manual_seed(1)
    return move(Stack(name, "decoder", DEPTHS, norm=norm).double().eval())


@each
def test_every_norm_of_a_structure_comes_from_its_place(name: str) -> None:
    """If the place makes a LayerNorm of another class, the stack has no nn.LayerNorm and gives the same output."""
    default, other = moved(name, NORMS["layer"]), moved(name, Plain)
    assert not any(isinstance(module, nn.LayerNorm) for module in other.modules())
    state = {key.replace("end.norm.", "end."): value for key, value in other.state_dict().items()}
    default.load_state_dict(state)
    x = inputs(5, 2, C)[0]
    if default.end is not None:
        default.end.eps = 1e-5  # resi_dual's exit has a different eps, but only with LayerNorm
    torch.testing.assert_close(default(x), other(x), rtol=1e-9, atol=1e-9)


@each
@each_norm
def test_every_structure_trains_with_every_norm(name: str, norm: str) -> None:
    stack = moved(name, NORMS[norm])
    x = inputs(5, 2, C)[0].requires_grad_()
    y = stack(x)
    (y * torch.randn_like(y)).sum().backward()
    for key, parameter in stack.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), key


@pytest.mark.parametrize("norm", ["rms", "scale"])
def test_ratio_of_rskip_ln_uses_the_divisor_of_the_norm(norm: str) -> None:
    """The ratio is 1 + d/w, where d is the root mean square of x + F for `rms` and the length of x + F for `scale`."""
    torch.manual_seed(1)
    site = move(connections.build("rskip_ln", Place(C, norm=NORMS[norm])).double())
    x, f = inputs(3, C)
    total = x + f
    scale = (total**2).mean(-1, keepdim=True).sqrt() if norm == "rms" else total.norm(dim=-1, keepdim=True)
    expected = 1 + scale / site.norm.weight
    torch.testing.assert_close(site.coefficients(x, f)["ratio"].double(), expected.expand_as(x), rtol=1e-4, atol=1e-4)


def test_functions_without_statistics_have_no_ratio() -> None:
    x, f = inputs(3, C)
    for norm in ("dyt", "derf"):
        assert divisor(NORMS[norm](C), x) is None
        assert connections.build("rskip_ln", Place(C, norm=NORMS[norm])).double().coefficients(x, f) == {}
    assert connections.build("rskip_ln", Place(C, norm=NORMS["dyt"]), skip_lambda=1).double().coefficients(x, f)


@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "layer"])
def test_norms_other_than_layer_do_not_fold(norm: str) -> None:
    site = connections.build("post_ln", Place(C, norm=NORMS[norm]))
    folds = connections.structure("post_ln").folds
    assert folds is not None
    with pytest.raises(connections.CannotFold, match="only a structure with --norm layer can be folded"):
        folds(site)
