"""Residual connections on images: channels first, batch norm, initial values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairseq_resid import connections
from fairseq_resid.connections import Place
from fairseq_resid.fairseq_patches import UserError
from fairseq_resid.models.classifier import batch_norm, first, last
from support.image_models import build

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", ["hyper", "attn_residual", "resi_dual", "dense_former", "dlcl"])
def test_wide_states_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--residual {name}: its state is wider than C channels.*xskip"):
        build("preact_resnet20", residual=name)


@pytest.mark.parametrize("name", ["xskip", "rskip_ln", "sas", "highway", "linear_shortcut", "deep_norm"])
def test_connection_on_images_equals_connection_on_channels_last(name: str) -> None:
    torch.manual_seed(2)
    place = Place(8, "stage1", "conv", 0, True, 0, 2, {"stage1": 2})
    site = connections.build(name, place).double()
    x, f = (torch.randn(2, 8, 5, 4, dtype=torch.float64) for _ in range(2))
    on_images = first(site(last(x), last(f)))
    on_rows = site(x.permute(0, 2, 3, 1).reshape(-1, 8).unsqueeze(1), f.permute(0, 2, 3, 1).reshape(-1, 8).unsqueeze(1))
    assert torch.allclose(on_images, on_rows.view(2, 5, 4, 8).permute(0, 3, 1, 2), atol=1e-12)


@pytest.mark.parametrize("name", ["rskip_ln", "sas"])
def test_gradients_on_images_are_correct(name: str) -> None:
    torch.manual_seed(3)
    site = connections.build(name, 4).double()
    x, f = (torch.randn(1, 4, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x, f: first(site(last(x), last(f))), (x, f))


def test_batch_norm_over_positions_equals_torch() -> None:
    torch.manual_seed(4)
    ours, theirs = batch_norm(6), nn.BatchNorm2d(6)
    x = torch.randn(3, 6, 4, 5) * 3 + 1
    assert torch.allclose(first(ours(last(x))), theirs(x), atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var)


def test_sas_starts_at_3_and_minus_3_on_images() -> None:
    model = build("preact_resnet20", residual="sas")
    biases = model.stages[0][1].residual.gate.output_bias
    assert biases.tolist() == [3.0, -3.0]
    assert build("preact_resnet20", residual="sas", sas_alpha_bias=1).cfg.sas_alpha_bias == 1


def test_batch_norm_reports_its_own_ratio() -> None:
    place = Place(4, "stage1", "conv", 0, True, 0, 1, {"stage1": 1}, batch_norm)
    site = connections.build("rskip_ln", place).eval()
    site.norm.running_var.copy_(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    found = site.coefficients(torch.randn(2, 3, 3, 4), torch.randn(2, 3, 3, 4))["ratio"]
    assert torch.allclose(found, torch.tensor([2.0, 3.0, 4.0, 5.0]).expand(2, 3, 3, 4), atol=1e-4)
