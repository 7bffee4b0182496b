"""Analysis and report of image models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fairseq_resid.__main__ import main
from fairseq_resid.analysis.observe import gradient_norms, settle_statistics
from fairseq_resid.connections import sites
from fairseq_resid.scoring.images import ImageBatch
from support.image_models import build

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_new_network_settles_batch_norm_statistics_before_analysis() -> None:
    model = build("preact_resnet20", residual="xskip").eval()
    batches = [ImageBatch({"images": 5 + torch.randn(6, 3, 8, 8)}, torch.tensor([0, 1, 2, 3, 4, 5])) for _ in range(3)]
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    settle_statistics(model, batches)
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        first_input = torch.cat([model.stem(batch.net_input["images"]) for batch in batches])
    norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    assert torch.allclose(norm.running_mean, first_input.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
    assert float(torch.cat([batch.nll(model).detach() for batch in batches]).mean()) < 5
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_gradient_norms_equal_those_of_single_images() -> None:
    model = build("preact_resnet20", stage_blocks="1,1,1", stage_channels="8,12,16", residual="sas").eval()
    pixels, target = torch.randn(3, 3, 8, 8), torch.tensor([1, 0, 2])
    found = gradient_norms(model, [ImageBatch({"images": pixels}, target)])
    expected = dict.fromkeys(sites(model), 0.0)
    for place in range(3):
        outputs: dict[str, torch.Tensor] = {}
        hooks = [
            site.register_forward_hook(lambda _, given, y, name=name, to=outputs: to.__setitem__(name, y))
            for name, site in sites(model).items()
        ]
        nll = nn.functional.cross_entropy(model(pixels[place : place + 1]), target[place : place + 1])
        for name, gradient in zip(outputs, torch.autograd.grad(nll, list(outputs.values())), strict=True):
            expected[name] += float(gradient.norm()) / 3
        for hook in hooks:
            hook.remove()
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.both
def test_analyze_reports_image_models(runs: list[Path], capsys: Capture) -> None:
    assert main(["analyze", *map(str, runs), "--sentences", "20", "--cpu"]) == 0
    said = capsys.readouterr().out
    assert "nats per image on 20 images of valid" in said
    found = json.loads((runs[1] / "analysis" / "analysis.json").read_text())
    assert list(found["sites"]) == ["stage1.0.conv", "stage2.0.conv", "stage3.0.conv"]
    site = found["sites"]["stage2.0.conv"]
    assert sum(site["coefficients"]["alpha"]["histogram"]) == 20 * 16 * 16
    assert site["gradient"] > 0 and site["coefficients"]["alpha"]["start"] == pytest.approx(0.953, abs=0.02)
    assert {path.stem for path in (runs[1] / "analysis").glob("*.svg")} >= {"coefficients", "gradients", "losses"}


def test_report_includes_image_models(runs: list[Path], tmp_path: Path) -> None:
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "p McNemar" in page and "stage2" in page
