"""Networks for images: sizes, layers, gradients, and refused shapes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_resid import connections
from fairseq_resid.connections import sites
from fairseq_resid.fairseq_patches import UserError
from fairseq_resid.models.classifier import NORMS, allowed_structures
from fairseq_resid.models.fully_connected import ARCHITECTURES as FULLY_CONNECTED
from fairseq_resid.models.residual_network import ARCHITECTURES, ORDERS, NarrowProjection
from fairseq_resid.models.two_streams import TwoStreamConv2d, TwoStreamLinear
from support.image_models import SHAPE, build, count
from support.scripts import imported

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arch", "parameters"),
    [
        # Targ 2016 reports 0.46M, 0.49M, 9.5M, 10.3M.
        ("rir_cnn", 464_154),
        ("resnet_init", 464_154),
        ("rir_resnet", 487_194),
        ("rir", 487_194),
        ("rir_fc", 1_317_898),  # (3,072 + 8 x 256) x 256 + 9 x 512 + 2,570
        ("rir_plain_fc", 1_317_898),
        ("rir_cnn_wide", 9_469_920),
        ("resnet_init_wide", 9_469_920),
        ("rir_resnet_wide", 10_299_360),
        ("rir_wide", 10_299_360),
        # He 2016b reports 1.7M for ResNet-110 and for ResNet-164.
        ("preact_resnet20", 272_282),
        ("preact_resnet110", 1_730_522),
        ("preact_resnet164", 1_703_258),
    ],
)
def test_parameter_counts_match_the_papers(arch: str, parameters: int) -> None:
    assert count(build(arch)) == parameters


def test_network_with_1001_layers_can_be_built() -> None:
    model = build("preact_resnet1001")
    convolutions = [each for each in model.modules() if isinstance(each, nn.Conv2d) and each.kernel_size != (1, 1)]
    assert len(sites(model)) == 333
    assert 10.1e6 < count(model) < 10.4e6  # He 2016b: 10.2M
    assert len(convolutions) == 334


@pytest.mark.parametrize("arch", sorted([*ARCHITECTURES, *FULLY_CONNECTED, "all_cnn_c"]))
def test_every_architecture_classifies_images(arch: str) -> None:
    if "1001" in arch or "wide" in arch:
        pytest.skip("too large for a test")
    model = build(arch).eval()
    with torch.no_grad():
        assert model(torch.randn(2, *SHAPE)).shape == (2, 10)


def reference(model: Any, x: torch.Tensor, join: Any) -> torch.Tensor:
    """Return the logits of a full pre-activation ResNet as drawn in He 2016b, with y = join(x, F)."""

    def norm(module: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.batch_norm(
            x, module.running_mean, module.running_var, module.weight, module.bias
        ))  # fmt: skip

    x = model.stem(x)
    for stage in model.stages:
        for block in stage:
            norms = [each for each in block.modules() if isinstance(each, nn.BatchNorm2d)]
            convolutions = [each for each in block.branch if isinstance(each, nn.Conv2d)]
            seen = norm(norms[0], x)
            if block.projection is not None:
                x = block.projection(seen)
            elif stage is model.stages[0] and block is stage[0]:
                x = seen
            x = join(x, convolutions[1](norm(norms[1], convolutions[0](seen))))
    return model.classify(norm(model.end[0], x).mean((2, 3)))


def test_network_equals_that_of_he_2016b() -> None:
    model = build("preact_resnet20").eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    x = torch.randn(2, *SHAPE)
    assert torch.allclose(model(x), reference(model, x, lambda x, f: x + f), atol=1e-4)


def test_block_orders_match_figure_4() -> None:
    expected = {
        "full_preact": "B R C B R C | ",
        "relu_preact": "R C B R C B | ",
        "original": "C B R C B | R",
        "bn_after_add": "C B R C | B R",
        "relu_before_add": "C B R C B R | ",
    }
    letters = {nn.BatchNorm2d: "B", nn.ReLU: "R", nn.Conv2d: "C"}
    for order in ORDERS:
        block = build("preact_resnet20", block_order=order).stages[0][1]
        branch, after = (" ".join(letters[type(each)] for each in part) for part in (block.branch, block.after))
        assert f"{branch} | {after}" == expected[order]


def has_norm(name: str) -> bool:
    return connections.uses_norm(name, connections.resolve(name, {}), final_norm=False)


@pytest.mark.parametrize(
    ("norm", "name"),
    [(norm, name) for norm in ("layer", "batch") for name in allowed_structures() if norm == "layer" or has_norm(name)]
    + [(norm, "rskip_ln") for norm in NORMS if norm not in ("layer", "batch")],
)
def test_every_structure_trains(name: str, norm: str) -> None:
    """Every parameter must get a gradient, because training on several GPUs would hang otherwise."""
    extra = {"admin_start": "closed"} if name == "admin" else {}
    model = build("preact_resnet20", stage_blocks="2,1,1", stage_channels="8,16,16", residual=name, norm=norm, **extra)
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1]))
    loss.backward()
    assert math.isfinite(loss.item())
    without = [key for key, each in model.named_parameters() if each.grad is None]
    assert not without


# This program runs forward and backward passes with oneDNN's AVX2 kernels until an out-of-bounds write crashes it. With
# torch.nn.Conv2d(4, 8, 1, stride=2, bias=False) instead, it crashes if torch needs NarrowProjection.
STRIDED = """
import torch
from fairseq_resid.models.residual_network import NarrowProjection
layer = NarrowProjection(4, 8, 2).to(memory_format=torch.channels_last)
x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
for _ in range(300):
    layer(x).square().sum().backward()
"""


@pytest.mark.both
def test_narrow_projection_trains_without_a_crash() -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", STRIDED], check=True, cwd=ROOT, env=environment)


def test_narrow_projection_is_a_strided_convolution() -> None:
    projections = [
        block.projection
        for stage in build("preact_resnet20", stage_blocks="1,1,1", stage_channels="4,7,8").stages
        for block in stage
        if block.projection is not None
    ]
    assert [type(each) for each in projections] == [NarrowProjection, NarrowProjection]
    wide = build("preact_resnet20", stage_blocks="1,1,1", stage_channels="8,8,8").stages[1][0].projection
    assert type(wide) is nn.Conv2d
    x = torch.randn(2, 4, 7, 8)
    expected = nn.functional.conv2d(x, projections[0].weight, stride=2)
    assert torch.allclose(projections[0](x), expected, atol=1e-6)
    assert [name for name, _ in projections[0].named_parameters()] == ["weight"]


def test_two_stream_layer_equals_four_maps_and_a_shortcut() -> None:
    torch.manual_seed(5)
    layer = TwoStreamConv2d(6, 6, 3, padding=1, bias=False)
    r, t = torch.randn(2, 2, 3, 5, 5).unbind()
    weight = layer.weight

    def conv(x: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        return nn.functional.conv2d(x, weight[rows, columns], padding=1)

    one, two = slice(0, 3), slice(3, 6)
    expected = torch.cat([conv(r, one, one) + conv(t, one, two) + r, conv(r, two, one) + conv(t, two, two)], 1)
    assert torch.allclose(layer(torch.cat([r, t], 1)), expected, atol=1e-5)
    linear = TwoStreamLinear(4, 6, bias=False)
    x = torch.randn(3, 4)
    shortcut = torch.cat([x[:, :2], torch.zeros(3, 4)], 1)
    assert torch.allclose(linear(x), x @ linear.weight.T + shortcut, atol=1e-6)


@pytest.mark.parametrize("arch", ["rir", "rir_cnn", "resnet_init_wide", "rir_resnet", "rir_fc", "rir_plain_fc"])
def test_targ_networks_use_msr_initialisation_for_all_weights(arch: str) -> None:
    drawn = [each for each in build(arch, classes=100).modules() if isinstance(each, (nn.Conv2d, nn.Linear))]
    for layer in drawn:
        inputs, outputs = layer.weight[0].numel(), layer.weight[:, 0].numel()
        expected = math.sqrt(2 / (outputs if isinstance(layer, nn.Conv2d) else inputs))
        assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.12), layer
    assert isinstance(drawn[-1], nn.Linear) and (drawn[-1].bias is None or not drawn[-1].bias.any())


def test_classifier_of_he_2016b_keeps_the_initial_values_of_torch() -> None:
    classify = build("preact_resnet20", classes=100).classify
    bound = 1 / math.sqrt(classify.in_features)
    assert float(classify.weight.detach().abs().max()) <= bound
    assert float(classify.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("arch", sorted(FULLY_CONNECTED))
def test_fully_connected_network_equals_its_formula(arch: str) -> None:
    model = build(arch, hidden_width=8, hidden_blocks=2).eval()
    x = torch.randn(3, *SHAPE)

    def linear(layer: nn.Linear, x: torch.Tensor, is_hidden: bool = True) -> torch.Tensor:
        y = x @ layer.weight.T
        if is_hidden and "plain" not in arch and "resnet_fc" not in arch:
            y = y + torch.cat([x[:, :4], torch.zeros(3, 4)], 1)
        return y / math.sqrt(1 + 1e-5)  # a new BatchNorm has running statistics 0 and 1

    h = torch.relu(linear(model.stem[0], x.reshape(3, -1), is_hidden=False))
    for block in model.blocks:
        f = linear(block.branch[3], torch.relu(linear(block.branch[0], h)))
        h = torch.relu(f if FULLY_CONNECTED[arch].get("no_shortcut") else h + f)
    torch.testing.assert_close(model(x), model.classify(h))
    assert len(sites(model)) == (0 if FULLY_CONNECTED[arch].get("no_shortcut") else 2)


@pytest.mark.parametrize("name", allowed_structures())
def test_fully_connected_network_accepts_every_structure(name: str) -> None:
    flags = {"admin_start": "closed"} if name == "admin" else {}
    for norm in ("layer", "batch") if has_norm(name) else ("layer",):
        model = build("rir_fc", residual=name, norm=norm, hidden_width=8, **flags)
        loss = nn.functional.cross_entropy(model(torch.randn(4, *SHAPE)), torch.tensor([0, 1, 2, 3]))
        loss.backward()
        assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("rir_cnn", {"residual": "sas"}, "--residual sas: not supported, because the architecture has no shortcuts"),
        ("preact_resnet164", {"block_layers": 5}, "--block-layers 5: a bottleneck always has three convolutions"),
        ("preact_resnet20", {"norm": "batch"}, "--norm batch: --residual xskip has no norm with these options"),
        ("preact_resnet20", {"residual": "admin"}, "--residual admin: .* use --admin-start closed"),
    ],
)
def test_unsupported_flags_of_an_architecture_are_refused(arch: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(arch, **flags)


def test_benchmark_network_equals_plain_pytorch_network(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--data", data, "--rounds", 1, "--batch", 4, "--structures", "xskip", "--device", "cpu"]
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["images.py", *map(str, flags), "--json", str(tmp_path / "out.json")])
    imported(ROOT / "benchmarks" / "images.py").main()
    found = json.loads((tmp_path / "out.json").read_text())["structures"]
    assert found["plain"]["parameters"] == found["xskip"]["parameters"]
