"""A small data folder of images, models for it, and their training."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_resid import (
    records,
    tasks,  # noqa: F401  (registers the architectures)
)
from fairseq_resid.data.images import image_folder as images
from fairseq_resid.files import sha256
from support import training_here

SHAPE = (3, 32, 32)
CLASSES = ["ant", "bee", "cow", "dog"]


def write_data(folder: Path, train: int = 96, valid: int = 24, test: int = 40) -> Path:
    """Write a data folder with four classes that a small network can distinguish."""
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


def build(arch: str, classes: int = 10, **flags: Any) -> Any:
    """Return a new model of an architecture."""
    torch.manual_seed(1)
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    known = Namespace(shape=SHAPE, classes=list(range(classes)))
    return ARCH_MODEL_REGISTRY[arch].build_model(args, Namespace(known=known))


def count(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


FLAGS = (
    "--task image_classification --criterion image_classification --optimizer sgd --momentum 0.9 --weight-decay 0.0001 "
    "--lr 0.05 --lr-scheduler manual --update2lr \"{'0': 0.05, '8': 0.005}\" --batch-size 32 --stage-blocks 1,1,1 "
    "--max-update 12 --save-interval-updates 4 --keep-interval-updates 1 --no-epoch-checkpoints --log-interval 2 "
    "--num-workers 0 --cpu"
)


def train(recipe: Path, run: Path, *flags: str) -> int:
    return training_here.train(recipe, run, "--arch", "preact_resnet20", *flags)
