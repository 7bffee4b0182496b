"""Measure the training speed of an image model with every structure, relative to the same network in plain PyTorch.

    python benchmarks/images.py [--data data-bin/cifar10] [--layers 20] [--structures xskip rskip_ln sas] [--json FILE]

The plain network is a pre-activation ResNet in the style of torchvision: nn.Conv2d, nn.BatchNorm2d, x + F. A step
consists of the forward pass, cross-entropy, the backward pass and SGD with momentum. All networks take turns in one
process. The speed in a round is the plain network's time divided by the structure's. `plain, contiguous` uses torch's
default memory format; all others use channels_last. The script also prints the time to read, crop, mirror and normalise
the images of a batch in this process, as a fraction of the plain network's step.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from measure import clock, machine, positive, shown, speed_ratio, spread, take_turns
from torch import Tensor, nn

from fairseq_resid import models  # noqa: F401  (registers the architectures)
from fairseq_resid.data.images import image_folder as images
from fairseq_resid.tasks.images import ImageDataset

PLAIN, CONTIGUOUS = "plain", "plain, contiguous"


class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, is_first: bool) -> None:
        super().__init__()
        self.shares = is_first or stride != 1
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.relu = nn.ReLU()
        self.down = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        ahead = self.relu(self.norm1(x))
        shortcut = ahead if self.shares else x
        if self.down is not None:
            shortcut = self.down(shortcut)
        return shortcut + self.conv2(self.relu(self.norm2(self.conv1(ahead))))


class PlainNetwork(nn.Module):
    """A network that computes the same function as preact_resnetN with x + F."""

    def __init__(self, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        stages, inputs = [], 16
        for stage, width in enumerate((16, 32, 64)):
            for layer in range(blocks):
                stages.append(PlainBlock(inputs, width, 2 if stage and not layer else 1, not stage and not layer))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.norm, self.relu = nn.BatchNorm2d(64), nn.ReLU()
        self.pool, self.classify = nn.AdaptiveAvgPool2d(1), nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(torch.flatten(self.pool(self.relu(self.norm(self.stages(self.stem(x))))), 1))


def build(layers: int, structure: str, known: images.ImageRecord) -> nn.Module:
    """Return our network with a structure."""
    arch = f"preact_resnet{layers}"
    config = Namespace(arch=arch, residual=structure)
    ARCH_CONFIG_REGISTRY[arch](config)
    made: nn.Module = ARCH_MODEL_REGISTRY[arch].build_model(config, Namespace(known=known))
    return made


def stepper(network: nn.Module, batch: Tensor, target: Tensor) -> Callable[[], None]:
    """Return a function that runs one training step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=2e-4)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch), target).backward()
        optimizer.step()

    return step


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Time all networks; return their results."""
    known = images.ImageRecord.of(args.data)
    dataset = ImageDataset(args.data, "train", known, 1, True, 4, True)
    numbers = dataset.ordered_indices()[: args.batch].tolist()
    sample = dataset.collater(numbers)
    batch, target = sample["net_input"]["images"].to(args.device), sample["target"].to(args.device)
    blocks = (args.layers - 2) // 6
    calls: dict[str, Callable[[], object]] = {}
    parameters = {}
    for name in (PLAIN, CONTIGUOUS, *args.structures):
        torch.manual_seed(1)
        is_plain = name in (PLAIN, CONTIGUOUS)
        network = PlainNetwork(blocks, len(known.classes)) if is_plain else build(args.layers, name, known)
        layout = torch.contiguous_format if name == CONTIGUOUS else torch.channels_last
        network = network.to(args.device).train()
        if is_plain:
            network = network.to(memory_format=layout)  # type: ignore[call-overload]
        calls[name] = stepper(network, batch.contiguous(memory_format=layout), target)
        parameters[name] = sum(each.numel() for each in network.parameters())
    calls["data"] = lambda: dataset.collater(numbers)
    seconds_of = clock(args.device, args.clock)
    take_turns(calls, 1, seconds_of)
    seconds = take_turns(calls, args.rounds, seconds_of)
    reading = seconds.pop("data")
    shares = [data / step for data, step in zip(reading, seconds[PLAIN], strict=True)]
    structures = {
        name: {
            "parameters": parameters[name],
            "images_per_second": spread([args.batch / each for each in seconds[name]]),
            "to_plain": speed_ratio(seconds, name, PLAIN),
        }
        for name in seconds
    }
    return {"structures": structures, "data_share": spread(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, default=Path("data-bin/cifar10"), metavar="DIR", help="a data folder of images")
    add("--layers", type=int, choices=(20, 32, 44, 56, 110), default=20, help="depth (default: %(default)s)")
    add("--batch", type=positive, default=128, metavar="N", help="images per batch (default: %(default)s)")
    add("--structures", nargs="+", default=["xskip", "rskip_ln", "sas"], metavar="NAME", help="default: %(default)s")
    measure.add_flags(parser, rounds=10)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    if not (args.data / images.RECORD).is_file():
        parser.error(f"--data {args.data}: not a data folder of images; make one with fairseq-resid prepare-images")
    found = {
        "machine": machine(args.device),
        "layers": args.layers,
        "batch": args.batch,
        "clock": args.clock,
        **train(args),
    }
    print(f"preact_resnet{args.layers}, {args.batch} images per step, {args.rounds} rounds, {args.clock} clock\n")
    print(f"{'structure':18} {'parameters':>12} {'images/s':>10}  to plain")
    for name, row in found["structures"].items():
        speed = row["images_per_second"]["median"]
        print(f"{name:18} {row['parameters']:12,} {speed:10,.0f}  {shown(row['to_plain'])}")
    print(f"\nloading a batch, as a fraction of the plain network's step: {shown(found['data_share'])}")
    measure.write(args, found)
    if args.plot:
        bars = {name: row["to_plain"] for name, row in found["structures"].items()}
        measure.plot_ratios(args.plot, {f"preact_resnet{args.layers}": bars}, "images/s, to plain")


if __name__ == "__main__":
    main()
