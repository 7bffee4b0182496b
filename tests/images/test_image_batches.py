"""Batches of images: crops, mirrors, order, and which images are augmented."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_resid.data.images import augmentation
from fairseq_resid.data.images import image_folder as images
from fairseq_resid.tasks.images import ImageClassificationTask, ImageDataset

pytestmark = pytest.mark.once


def test_crops_and_mirrors_match_their_random_draws() -> None:
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


def test_batches_depend_only_on_seed_and_epoch(data: Path) -> None:
    known = images.ImageRecord.of(data)

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


def test_only_training_images_are_augmented(data: Path) -> None:
    args = Namespace(data=str(data), crop_padding=4, no_flip=False, seed=1, train_subset="train")
    task = ImageClassificationTask.setup_task(args)
    for split in ("train", "valid"):
        task.load_dataset(split)
        dataset = task.dataset(split)
        still = task.open(split).collater(list(range(24)))["net_input"]["images"]
        is_still = torch.equal(dataset.collater(list(range(24)))["net_input"]["images"], still)
        in_order = dataset.ordered_indices().tolist() == list(range(len(dataset)))
        assert (is_still, in_order) == (split == "valid", split == "valid")
