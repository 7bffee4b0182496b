"""Pixels on their way to a model: cropped and flipped at random in training, then normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Draws:
    """What chance decides of every image in one epoch.

    down, right: (N,), where the crop begins in the padded image, 0 to 2·padding; flip: (N,), whether it is mirrored
    """

    down: np.ndarray
    right: np.ndarray
    flip: np.ndarray


def draw(seed: int, epoch: int, images: int, padding: int, flips: bool) -> Draws:
    """Return the draws of an epoch: the same for the same arguments, whoever draws them and in whatever order."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    down, right = generator.integers(0, 2 * padding + 1, (2, images))
    flip = generator.integers(0, 2, images).astype(bool) & flips
    return Draws(down, right, flip)


def normalise(pixels: np.ndarray, mean: Sequence[float], deviation: Sequence[float]) -> np.ndarray:
    """Return (pixels / 255 − mean) / deviation of every channel.

    Shapes:   (N, C, H, W) bytes -> the same in fp32
    """
    scale = 1 / (255 * np.asarray(deviation, dtype=np.float32))
    shift = np.asarray(mean, dtype=np.float32) / np.asarray(deviation, dtype=np.float32)
    normal: np.ndarray = pixels * scale[:, None, None] - shift[:, None, None]
    return normal


def shift(images: np.ndarray, numbers: np.ndarray, draws: Draws, padding: int) -> np.ndarray:
    """Return normalised images, each padded with 0 on all sides, cropped to its size, and mirrored, as was drawn.

    0 is the mean of a channel: the padding is as in He 2016b's code, and not black.
    Shapes:   images (N, C, H, W); numbers: (N,), which images of the data they are
    """
    height, width = images.shape[-2:]
    out = np.zeros_like(images)
    for place, number in enumerate(numbers):
        down, right = int(draws.down[number]) - padding, int(draws.right[number]) - padding
        top, left = max(down, 0), max(right, 0)
        bottom, end = height + min(down, 0), width + min(right, 0)
        part: Any = images[place, :, top:bottom, left:end]
        if draws.flip[number]:
            part = part[:, :, ::-1]
            left, end = width - end, width - left
            right = -right
        out[place, :, top - down : bottom - down, left - right : end - right] = part
    return out
