"""Image models: networks, connections on images, the task's batches, training, resuming, scores, analysis."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from ports import free_port
from torch import nn

from fairseq_resid import connections, tasks  # noqa: F401  (registers the architectures)
from fairseq_resid.__main__ import main
from fairseq_resid.analysis.model import ImageBatch
from fairseq_resid.analysis.observe import gradient_norms, settle_statistics
from fairseq_resid.compat import UserError
from fairseq_resid.connections import Place, sites
from fairseq_resid.evaluation import images as scoring
from fairseq_resid.folders import images, records
from fairseq_resid.folders.files import sha256
from fairseq_resid.folders.run import Run
from fairseq_resid.models.classifier import allowed_structures, batch_norm, first, last
from fairseq_resid.models.residual_network import ARCHITECTURES, ORDERS, NarrowProjection
from fairseq_resid.models.two_streams import TwoStreamConv2d, TwoStreamLinear
from fairseq_resid.study import measures
from fairseq_resid.tasks.images import ImageClassificationTask, ImageDataset
from fairseq_resid.vision import augmentation

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
Capture = pytest.CaptureFixture[str]
SHAPE = (3, 32, 32)
CLASSES = ["ant", "bee", "cow", "dog"]


def write_data(folder: Path, train: int = 96, valid: int = 24, test: int = 40) -> Path:
    """Write a data folder of four classes that a small network can tell apart."""
    generator = np.random.default_rng(5)
    means = generator.integers(40, 200, (len(CLASSES), 3, 1, 1))
    folder.mkdir(parents=True)
    counts = {"train": train, "valid": valid, "test": test}
    for split, count in counts.items():
        made = np.empty(count, dtype=images.dtype(SHAPE))
        made["label"] = generator.integers(0, len(CLASSES), count)
        noise = generator.integers(-60, 60, (count, *SHAPE))
        made["pixels"] = np.clip(means[made["label"]] + noise, 0, 255)
        np.save(folder / f"{split}.npy", made)
    sizes = {f"{split}.npy": (folder / f"{split}.npy").stat().st_size for split in counts}
    record = images.ImageRecord(
        name="farm", classes=CLASSES, shape=SHAPE, counts=counts, mean=[0.5, 0.4, 0.3], deviation=[0.2, 0.25, 0.3],
        source="folder", sizes=sizes, checksums={name: sha256(folder / name) for name in sizes},
    )  # fmt: skip
    records.write(folder / images.RECORD, record)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("images") / "farm")


def build(arch: str, classes: int = 10, **flags: Any) -> Any:
    """Return a new model of an architecture."""
    torch.manual_seed(1)
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    known = Namespace(shape=SHAPE, classes=list(range(classes)))
    return ARCH_MODEL_REGISTRY[arch].build_model(args, Namespace(known=known))


def count(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


# ------------------------------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize(
    ("arch", "parameters"),
    [
        # Targ 2016 prints 0.46M, 0.49M, 9.5M, 10.3M.
        ("rir_cnn", 464_154),
        ("resnet_init", 464_154),
        ("rir_resnet", 487_194),
        ("rir", 487_194),
        ("rir_cnn_wide", 9_469_920),
        ("resnet_init_wide", 9_469_920),
        ("rir_resnet_wide", 10_299_360),
        ("rir_wide", 10_299_360),
        # He 2016b prints 1.7M for both.
        ("preact_resnet20", 272_282),
        ("preact_resnet110", 1_730_522),
        ("preact_resnet164", 1_703_258),
    ],
)
def test_parameters(arch: str, parameters: int) -> None:
    assert count(build(arch)) == parameters


def test_a_network_of_1001_layers_is_built() -> None:
    model = build("preact_resnet1001")
    convolutions = [each for each in model.modules() if isinstance(each, nn.Conv2d) and each.kernel_size != (1, 1)]
    assert len(sites(model)) == 333
    assert 10.1e6 < count(model) < 10.4e6  # He 2016b: 10.2M
    assert len(convolutions) == 334


@pytest.mark.parametrize("arch", sorted([*ARCHITECTURES, "all_cnn_c"]))
def test_every_architecture_names_the_class_of_an_image(arch: str) -> None:
    if "1001" in arch or "wide" in arch:
        pytest.skip("too large for a test")
    model = build(arch).eval()
    with torch.no_grad():
        assert model(torch.randn(2, *SHAPE)).shape == (2, 10)


def reference(model: Any, x: torch.Tensor, join: Any) -> torch.Tensor:
    """Return the logits of a full pre-activation ResNet by He 2016b's figure, with y = join(x, F)."""

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


def test_the_network_is_he_2016b() -> None:
    model = build("preact_resnet20").eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    x = torch.randn(2, *SHAPE)
    assert torch.allclose(model(x), reference(model, x, lambda x, f: x + f), atol=1e-4)


def test_orders_of_a_block_are_figure_4() -> None:
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


@pytest.mark.parametrize("name", allowed_structures())
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_every_structure_trains(name: str, norm: str) -> None:
    """Every parameter gets a gradient: several GPUs would wait for one that does not."""
    extra = {"admin_start": "closed"} if name == "admin" else {}
    model = build("preact_resnet20", stage_blocks="2,1,1", stage_channels="8,16,16", residual=name, norm=norm, **extra)
    loss = nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1]))
    loss.backward()
    assert math.isfinite(loss.item())
    without = [key for key, each in model.named_parameters() if each.grad is None]
    assert not without


# Forward and backward until a write outside of a buffer has ended the process.
STRIDED = """
import sys
import torch
if sys.argv[1] == "torch":
    layer = torch.nn.Conv2d(4, 8, 1, stride=2, bias=False)
else:
    from fairseq_resid.models.residual_network import NarrowProjection
    layer = NarrowProjection(4, 8, 2)
layer.to(memory_format=torch.channels_last)
x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
for _ in range(300):
    layer(x).square().sum().backward()
"""


def train_strided(layer: str) -> int:
    """Return the exit code of a process that trains a narrow strided convolution with oneDNN's AVX2 kernels."""
    command = [sys.executable, "-c", STRIDED, layer]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    )
    assert done.returncode <= 0, done.stderr
    return done.returncode


@pytest.mark.both
def test_narrow_strided_convolution_of_torch_corrupts_memory() -> None:
    """The reason for NarrowProjection, seen in oneDNN 3.12. A skip means that it may be removed: read its text."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file() or "avx2" not in cpuinfo.read_text().split():
        pytest.skip("this CPU has no AVX2, so oneDNN's AVX2 kernels do not run here")
    if train_strided("torch") == 0:
        versions = re.findall(r"MKL-DNN v(\S+)", torch.__config__.show())
        pytest.skip(
            f"oneDNN {' '.join(versions)} does not corrupt memory here; once this is true of every supported torch, "
            "remove NarrowProjection and this test"
        )


@pytest.mark.both
def test_narrow_projection_trains_without_a_crash() -> None:
    assert train_strided("ours") == 0


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
    assert torch.allclose(torch.jit.script(projections[0])(x), expected, atol=1e-6)
    assert [name for name, _ in projections[0].named_parameters()] == ["weight"]


@pytest.mark.parametrize("name", ["hyper", "attn_residual", "resi_dual", "dense_former"])
def test_wide_states_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--residual {name}: its state is wider than C channels.*xskip"):
        build("preact_resnet20", residual=name)


@pytest.mark.parametrize("name", ["xskip", "rskip_ln", "sas", "highway", "linear_shortcut", "deep_norm"])
def test_a_connection_on_images_is_the_one_on_channels_last(name: str) -> None:
    torch.manual_seed(2)
    place = Place(8, "stage1", "conv", 0, True, 0, 2, {"stage1": 2})
    site = connections.build(name, place).double()
    x, f = (torch.randn(2, 8, 5, 4, dtype=torch.float64) for _ in range(2))
    on_images = first(site(last(x), last(f)))
    on_rows = site(x.permute(0, 2, 3, 1).reshape(-1, 8).unsqueeze(1), f.permute(0, 2, 3, 1).reshape(-1, 8).unsqueeze(1))
    assert torch.allclose(on_images, on_rows.view(2, 5, 4, 8).permute(0, 3, 1, 2), atol=1e-12)


@pytest.mark.parametrize("name", ["rskip_ln", "sas"])
def test_gradients_on_images(name: str) -> None:
    torch.manual_seed(3)
    site = connections.build(name, 4).double()
    x, f = (torch.randn(1, 4, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x, f: first(site(last(x), last(f))), (x, f))


def test_batch_norm_over_positions_is_torchs() -> None:
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


def test_two_streams_are_four_maps_and_a_shortcut() -> None:
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


def test_weight_decay_draws_two_streams_to_the_identity() -> None:
    layer = TwoStreamConv2d(4, 4, 3, padding=1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=5.0)
    for _ in range(30):
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
    x = torch.randn(1, 4, 3, 3)
    assert torch.allclose(layer(x)[:, :2], x[:, :2], atol=1e-4)
    assert torch.allclose(layer(x)[:, 2:], torch.zeros(1, 2, 3, 3), atol=1e-4)


@pytest.mark.both
@pytest.mark.parametrize("residual", ["xskip", "sas", "rskip_ln"])
def test_the_network_is_scripted(residual: str) -> None:
    model = build("preact_resnet20", stage_blocks="1,1,1", residual=residual).eval()
    x = torch.randn(2, *SHAPE)
    assert torch.allclose(torch.jit.script(model)(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"stage_blocks": "3,3"}, "--stage-blocks 3,3 and --stage-channels 16,32,64: of as many stages"),
        ({"stage_blocks": "3,x,3"}, "--stage-blocks 3,x,3: whole numbers above 0"),
        ({"stage_channels": "0,1,2"}, "--stage-channels 0,1,2: whole numbers above 0"),
        ({"block_layers": 0}, "--block-layers 0: 1 or more"),
        ({"norm": "group"}, "--norm group: choose one of layer, batch"),
        ({"residual": "admin"}, "--residual admin: .* use --admin-start closed"),
        ({"norm": "batch", "residual_backend": "triton", "residual": "rskip_ln"}, "--residual-backend triton: "),
    ],
)
def test_bad_forms(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("preact_resnet20", **flags)


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("rir_cnn", {"residual": "sas"}, "--residual sas: this architecture has no shortcuts"),
        ("preact_resnet164", {"block_layers": 5}, "--block-layers 5: a bottleneck has three convolutions of its own"),
        ("preact_resnet164", {"stage_channels": "2,4,8"}, "--stage-channels 2,4,8: bottlenecks need multiples of 4"),
    ],
)
def test_flags_that_an_architecture_cannot_take(arch: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(arch, **flags)


def test_a_network_without_sites_says_what_went_wrong() -> None:
    model = build("all_cnn_c")
    assert model.divergence_advice() == "use a lower --lr"
    with pytest.raises(UserError, match="the checkpoint does not fit --arch all_cnn_c"):
        model.load_state_dict({}, strict=True)
    small = Namespace(known=Namespace(shape=(3, 8, 8), classes=CLASSES))
    with pytest.raises(UserError, match="takes images of 9x9 or more"):
        ARCH_MODEL_REGISTRY["all_cnn_c"].build_model(Namespace(arch="all_cnn_c"), small)


# ------------------------------------------------------------------------------------------------------------- batches


def test_crops_and_mirrors_are_what_was_drawn() -> None:
    generator = np.random.default_rng(7)
    batch = generator.normal(size=(40, 3, 6, 5)).astype(np.float32)
    draws = augmentation.draw(1, 2, 100, 2, True)
    numbers = generator.permutation(100)[:40]
    made = augmentation.shift(batch, numbers, draws, 2)
    padded = np.pad(batch, ((0, 0), (0, 0), (2, 2), (2, 2)))
    for place, number in enumerate(numbers):
        down, right = draws.down[number], draws.right[number]
        expected = padded[place, :, down : down + 6, right : right + 5]
        expected = expected[:, :, ::-1] if draws.flip[number] else expected
        assert np.array_equal(made[place], expected)
    assert set(draws.down) == set(range(5)) and 20 < draws.flip.sum() < 80


def test_batches_depend_on_seed_and_epoch_alone(data: Path) -> None:
    known = images.read(data)

    def epoch(seed: int, number: int, size: int = 32) -> list[Any]:
        dataset = ImageDataset(data, "train", known, seed, True, 4, True)
        dataset.set_epoch(number)
        batches = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=size)
        return [dataset.collater(list(batch)) for batch in batches]

    one, same, other = epoch(1, 2), epoch(1, 2), epoch(1, 3)
    assert [len(batch["target"]) for batch in epoch(1, 2, 36)] == [36, 36, 24]
    for batch, again in zip(one, same, strict=True):
        assert torch.equal(batch["net_input"]["images"], again["net_input"]["images"])
    assert not torch.equal(one[0]["id"], other[0]["id"])
    assert not torch.equal(one[0]["id"], epoch(2, 2)[0]["id"])
    assert sorted(number for batch in one for number in batch["id"].tolist()) == list(range(96))
    draws = [augmentation.draw(1, epoch, 96, 4, True) for epoch in (2, 2, 3)]
    assert np.array_equal(draws[0].down, draws[1].down) and not np.array_equal(draws[0].down, draws[2].down)
    still = ImageDataset(data, "train+valid", known, 1, False, 4, True)
    sample = still.collater([0, 95, 96, 119])
    raw = [np.load(data / "train.npy")[[0, 95]], np.load(data / "valid.npy")[[0, 23]]]
    pixels = np.concatenate([part["pixels"] for part in raw]) / 255
    expected = (pixels - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.2, 0.25, 0.3])[:, None, None]
    assert torch.allclose(sample["net_input"]["images"].double(), torch.from_numpy(expected), atol=1e-5)
    assert sample["target"].tolist() == np.concatenate([part["label"] for part in raw]).tolist()


def test_only_training_sees_moved_images(data: Path) -> None:
    args = Namespace(data=str(data), crop_padding=4, no_flip=False, seed=1, train_subset="train")
    task = ImageClassificationTask.setup_task(args)
    for split in ("train", "valid"):
        task.load_dataset(split)
        dataset = task.dataset(split)
        still = task.open(split).collater(list(range(24)))["net_input"]["images"]
        is_still = torch.equal(dataset.collater(list(range(24)))["net_input"]["images"], still)
        in_order = dataset.ordered_indices().tolist() == list(range(len(dataset)))
        assert (is_still, in_order) == (split == "valid", split == "valid")


@pytest.mark.both
def test_a_step_by_amp_is_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD, whose step shows by what its gradient was divided; Adam's would not."""
    from fairseq.optim.amp_optimizer import AMPOptimizer
    from fairseq.optim.sgd import SGD

    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda **given: torch.amp.GradScaler("cpu", **given))
    weight = nn.Parameter(torch.ones(1))
    of = Namespace(lr=[0.1], momentum=0.9, weight_decay=0.0)
    common = Namespace(fp16_init_scale=128, amp_scale_window=None, min_loss_scale=1e-4)
    optimizer = AMPOptimizer(Namespace(optimizer=of, common=common), [weight], SGD(of, [weight]))
    optimizer.backward(3 * weight.sum())
    assert float(optimizer.clip_grad_norm(0.0)) == pytest.approx(3)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 3)


# ------------------------------------------------------------------------------------------------------------ figures


def test_a_new_network_is_read_with_the_statistics_of_what_it_reads() -> None:
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


def test_the_ratio_of_a_batch_norm_is_its_own() -> None:
    place = Place(4, "stage1", "conv", 0, True, 0, 1, {"stage1": 1}, batch_norm)
    site = connections.build("rskip_ln", place).eval()
    site.norm.running_var.copy_(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    found = site.coefficients(torch.randn(2, 3, 3, 4), torch.randn(2, 3, 3, 4))["ratio"]
    assert torch.allclose(found, torch.tensor([2.0, 3.0, 4.0, 5.0]).expand(2, 3, 3, 4), atol=1e-4)


def test_gradient_norms_are_of_single_images() -> None:
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


def test_measures_of_images_are_means_over_images(tmp_path: Path) -> None:
    answers = [
        scoring.Answer(0, 0, 0.5),
        scoring.Answer(1, 2, 2.0),
        scoring.Answer(2, 2, 0.5),
        scoring.Answer(2, 0, 3.0),
    ]
    scoring.write(scoring.answers_file(Run(tmp_path), "test"), answers)
    for name, expected in (("error", 50.0), ("NLL", 1.5)):
        measure = measures.kind("error").measures[name]
        assert measure.score(np.array(measure.parts(Run(tmp_path), "test")).sum(axis=0)) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------- training and scoring


FLAGS = (
    "--task image_classification --criterion image_classification --optimizer sgd --momentum 0.9 --weight-decay 0.0001 "
    "--lr 0.05 --lr-scheduler manual --update2lr \"{'0': 0.05, '8': 0.005}\" --batch-size 32 --stage-blocks 1,1,1 "
    "--max-update 12 --save-interval-updates 4 --keep-interval-updates 1 --no-epoch-checkpoints --log-interval 2 "
    "--num-workers 0 --cpu"
)


def train(recipe: Path, run: Path, *flags: str) -> int:
    return main(["train", str(recipe), "--arch", "preact_resnet20", "--run", str(run), *flags])


@pytest.fixture(scope="module")
def recipe(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "farm.txt"
    file.write_text(f"{data}\n{FLAGS}\n")
    return file


@pytest.fixture(scope="module")
def runs(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two trained and evaluated runs, that of sas with another number of workers."""
    folder = tmp_path_factory.mktemp("runs")
    made = [folder / "xskip", folder / "sas"]
    assert train(recipe, made[0], "--residual", "xskip") == 0
    assert train(recipe, made[1], "--residual", "sas", "--log-coefficients") == 0
    assert main(["evaluate", *map(str, made), "--cpu"]) == 0
    return made


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(run / "checkpoint_last.pt", weights_only=False)["model"])


@pytest.mark.both
def test_a_training_learns_and_says_its_error(runs: list[Path]) -> None:
    records_of = [row for row in Run(runs[1]).log_records() if "valid_error" in row]
    assert float(records_of[-1]["valid_error"]) + float(records_of[-1]["valid_accuracy"]) == pytest.approx(
        100, abs=0.02
    )
    assert any("alpha.stage2.0.conv" in row for row in Run(runs[1]).log_records())
    summary = Run(runs[0]).training_summary()
    assert summary.unit == "images" and summary.num_updates == 12 and summary.target_tokens == 384
    rates = {row["num_updates"]: float(row["lr"]) for row in Run(runs[0]).log_records() if "lr" in row}
    assert rates["6"] == 0.05 and rates["10"] == 0.005


@pytest.mark.both
def test_resumed_bitwise_and_by_any_number_of_workers(recipe: Path, runs: list[Path], tmp_path: Path) -> None:
    halves = tmp_path / "halves"
    assert train(recipe, halves, "--residual", "xskip", "--max-update", "7") == 0
    record = json.loads((halves / "run.json").read_text())
    record["command"] = [word if word != "7" else "12" for word in record["command"]]
    record["finished"] = False
    (halves / "run.json").write_text(json.dumps(record))
    assert train(recipe, halves, "--residual", "xskip", "--max-update", "12") == 0
    workers = tmp_path / "workers"
    assert train(recipe, workers, "--residual", "xskip", "--num-workers", "2") == 0
    for name, expected in weights(runs[0]).items():
        assert torch.equal(weights(halves)[name], expected), name
        assert torch.equal(weights(workers)[name], expected), name


@pytest.mark.both
def test_two_processes_train_one_model(recipe: Path, tmp_path: Path) -> None:
    """fairseq's own gradient buffers take no weight that is channels-last."""
    run = tmp_path / "two"
    train_sh = [str(ROOT / "scripts" / "train.sh"), str(recipe), "--arch", "preact_resnet20", "--residual", "sas"]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--no-python", "--"]
    torchrun[1:1] = ["--master-port", str(free_port())]
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": sys.prefix}
    command = [*torchrun, *train_sh, "--run", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((run / "run.json").read_text())
    assert record["finished"] and record["plan"]["batch-size"] == 16 and record["plan"]["effective batch"] == 32
    assert Run(run).training_summary().num_updates == 12


@pytest.mark.both
def test_workers_end_with_their_epoch(data: Path, tmp_path: Path) -> None:
    watched = (
        "import os\nfrom fairseq_resid.tasks.images import ImageClassificationTask as Task\nbegin = Task.begin_epoch\n"
        "def counted(self, epoch, model):\n    begin(self, epoch, model)\n    me = os.getpid()\n"
        "    print('CHILDREN', len(open(f'/proc/{me}/task/{me}/children').read().split()), flush=True)\n"
        "Task.begin_epoch = counted\nfrom fairseq_cli.train import cli_main\ncli_main()\n"
    )
    flags = f"{data} --user-dir fairseq_resid --arch preact_resnet20 --stage-channels 8,8,8 {FLAGS} --max-epoch 4"
    flags += f" --no-save --save-dir {tmp_path / 'run'} --num-workers 1"
    command = [sys.executable, "-c", watched, *shlex.split(flags)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("CHILDREN")]
    # A worker of training and one of validation, and one that is just ending; one more for every epoch would be 7.
    assert len(counts) == 4 and max(counts) <= 4 and "AssertionError" not in done.stderr


@pytest.mark.both
def test_scores_are_of_the_last_checkpoint(data: Path, runs: list[Path], capsys: Capture) -> None:
    results = Run(runs[0]).read_results()
    model = build("preact_resnet20", classes=4, stage_blocks="1,1,1")
    model.load_state_dict(weights(runs[0]))
    dataset = ImageDataset(data, "test", images.read(data), 1, False, 0, False)
    sample = dataset.collater(list(range(len(dataset))))
    with torch.no_grad():
        logits = model.eval()(sample["net_input"]["images"])
    wrong = 100 * float((logits.argmax(1) != sample["target"]).double().mean())
    assert results.scores["last"]["error"].score == pytest.approx(wrong)
    nll = float(nn.functional.cross_entropy(logits, sample["target"]))
    assert results.scores["last"]["NLL"].score == pytest.approx(nll, abs=2e-4)
    assert results.bleu is None and results.parameters == count(model)
    assert not (runs[0] / "averaged.pt").exists()
    assert main(["evaluate", str(runs[0]), "--cpu"]) == 0
    assert "made from the same files, kept" in capsys.readouterr().out
    assert "| test, 40 | error |" in (runs[0] / "card.md").read_text()


def test_compared_and_in_a_table(runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    assert main(["compare", *map(str, runs), "--markdown"]) == 0
    said = capsys.readouterr().out
    twin, other = tmp_path / "twin", tmp_path / "other"
    shutil.copytree(runs[0], twin)
    shutil.copytree(runs[0], other)
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**record, "command": [*record["command"], "--seed", "2"]}))
    assert main(["compare", str(runs[0]), str(twin)]) == 0
    assert "some have the same seed: there is no spread over seeds" in capsys.readouterr().out
    assert main(["evaluate", str(runs[0]), str(other), "--cpu", "--subset", "test"]) == 0
    assert "preact_resnet20 --residual xskip test, 2 seeds (xskip, other): error mean" in capsys.readouterr().out
    (other / "results.json").unlink()
    assert main(["compare", str(runs[0]), str(other)]) == 2
    assert "run fairseq-resid evaluate" in capsys.readouterr().err
    assert main(["table", *map(str, runs), "--at-least", "20"]) == 2
    assert "--at-least 20: a BLEU, and these runs are of images" in capsys.readouterr().err
    assert "| run | architecture | error % | difference | 95% interval | p McNemar |" in said
    assert main(["table", *map(str, runs), "--markdown"]) == 0
    assert "| error % | NLL | images/s |" in capsys.readouterr().out


def test_mcnemar_and_intervals() -> None:
    baseline = [scoring.Answer(0, int(number < 30), 0.0) for number in range(100)]
    mine = [scoring.Answer(0, int(10 <= number < 32), 0.0) for number in range(100)]
    found = scoring.paired(mine, baseline)
    assert found.difference == pytest.approx(-8)
    # 2 images are wrong here alone, 10 there alone: both tails of 12 fair coins.
    assert found.p == pytest.approx(2 * sum(math.comb(12, k) for k in range(3)) / 2**12)
    assert found.low < -8 < found.high < 0
    low, high = scoring.interval(baseline)
    assert low == pytest.approx(21.895, abs=1e-2) and high == pytest.approx(39.583, abs=1e-2)  # Wilson, by hand
    assert scoring.over_runs([1.0, 2.0, 3.0]) == "mean 2.00 ± 1.00%, 95% interval -0.48 to 4.48, median 2.00%"


@pytest.mark.both
def test_analysis_of_images(runs: list[Path], capsys: Capture) -> None:
    assert main(["analyze", *map(str, runs), "--sentences", "20", "--cpu"]) == 0
    said = capsys.readouterr().out
    assert "nats an image on 20 images of valid" in said
    found = json.loads((runs[1] / "analysis" / "analysis.json").read_text())
    assert list(found["sites"]) == ["stage1.0.conv", "stage2.0.conv", "stage3.0.conv"]
    site = found["sites"]["stage2.0.conv"]
    assert sum(site["coefficients"]["alpha"]["histogram"]) == 20 * 16 * 16
    assert site["gradient"] > 0 and site["coefficients"]["alpha"]["start"] == pytest.approx(0.953, abs=0.02)
    assert {path.stem for path in (runs[1] / "analysis").glob("*.svg")} >= {"coefficients", "gradients", "losses"}


def test_the_report_takes_images(runs: list[Path], tmp_path: Path) -> None:
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "p McNemar" in page and "stage2" in page


def test_a_study_of_images(recipe: Path, tmp_path: Path) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text(
        f"title: Farm\nrecipe: {recipe}\nmeasure: error\nanalyze: 1\nflags: --arch preact_resnet20\nbaseline: plain\n"
        "arms: {plain: --residual xskip, recursive: --residual rskip_ln}\n"
        "plan: [{setting: recipe, arms: [plain, recursive], seeds: 2}]\n"
    )
    command = [sys.executable, "-m", "fairseq_resid", "study", str(file), "--work", str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "farm" / "results.md").read_text()
    assert "## error minus the baseline's" in page and "Test sets: test, 40 images" in page
    assert "| recipe | recursive |" in page and "BLEU" not in page
    assert (tmp_path / "farm" / "recipe.plain.seed1" / "analysis" / "analysis.json").is_file()
    assert not (tmp_path / "farm" / "recipe.plain.seed2" / "analysis").exists()


def test_a_measure_of_another_task_is_refused(recipe: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text(
        f"title: Farm\nrecipe: {recipe}\nmeasure: NLL\nflags: --arch preact_resnet20\nbaseline: plain\n"
        "arms: {plain: --residual xskip}\nplan: [{setting: recipe, arms: [plain], seeds: 1}]\n"
    )
    assert main(["study", str(file), "--work", str(tmp_path / "work")]) == 2
    assert "measure: NLL: the recipe's task is image_classification; its measure is error" in capsys.readouterr().err


def test_text_and_images_are_not_mixed(recipe: Path, runs: list[Path], tmp_path: Path, capsys: Capture) -> None:
    run = ["--run", str(tmp_path / "run")]
    assert main(["train", str(recipe), "--arch", "transformer_sas", *run]) == 2
    assert "--arch transformer_sas: a model of text, and the recipe's task is image_cl" in capsys.readouterr().err
    assert main(["train", "multi30k-en-de", "--arch", "rir", *run]) == 2
    assert "--arch rir: a model of images, and the recipe's task is translation" in capsys.readouterr().err
    assert main(["attention", str(runs[0]), "--cpu"]) == 2
    assert "a model of images, which does not attend" in capsys.readouterr().err
    assert main(["analyze", str(runs[0]), "--subset", "nosuch", "--cpu"]) == 2
    assert "nosuch.npy: no such file" in capsys.readouterr().err


def test_what_was_trained_on_is_said(recipe: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "all"
    flags = ["--train-subset", "train+valid", "--valid-subset", "test", "--stage-channels", "8,8,8"]
    assert train(recipe, run, *flags) == 0
    assert Run(run).training_summary().best_valid_loss is not None
    assert main(["evaluate", str(run), "--cpu"]) == 0
    said = capsys.readouterr().out
    assert "all valid (the model was trained on it): error" in said and "all test: error" in said
    assert "| valid (trained on), 24 | error |" in (run / "card.md").read_text()
    assert main(["analyze", str(run), "--sentences", "8", "--no-ablation", "--cpu"]) == 0
    assert "on 8 images of valid, which it was trained on" in capsys.readouterr().out
    assert main(["train", "multi30k-en-de-small", str(data), "--arch", "transformer_sas", "--run", str(run) + "2"]) == 2
    assert "holds images, and the recipe's task reads text" in capsys.readouterr().err
    file = tmp_path / "farm.yaml"
    file.write_text(
        f"title: Farm\nrecipe: {recipe}\nmeasure: error\nflags: --arch preact_resnet20 --train-subset train+valid\n"
        "baseline: plain\narms: {plain: --residual xskip}\nplan: [{setting: recipe, arms: [plain], seeds: 1}]\n"
        "tuning: {flag: --lr, grid: [0.1, 0.2], seed: 9}\n"
    )
    assert main(["study", str(file), "--work", str(tmp_path / "work")]) == 2
    assert "tuning: valid: --train-subset has it too" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--residual", "hyper"], "its state is wider than C channels"),
        (["--crop-padding", "40"], "--crop-padding 40: 0 to 32 are allowed here"),
        (["--max-tokens", "4096"], "--max-tokens"),
    ],
)
def test_bad_trainings(recipe: Path, tmp_path: Path, flags: list[str], message: str, capsys: Capture) -> None:
    assert train(recipe, tmp_path / "run", *flags) != 0
    said = capsys.readouterr().err
    log = tmp_path / "run" / "train.log"
    assert message in said + (log.read_text() if log.exists() else "")


def test_the_benchmark_has_the_same_network_in_plain_pytorch(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "images.py", "--data", data, "--rounds", "1", "--batch", "4"]
    command += ["--structures", "xskip", "--device", "cpu", "--json", tmp_path / "out.json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["structures"]
    assert found["plain"]["parameters"] == found["xskip"]["parameters"]
