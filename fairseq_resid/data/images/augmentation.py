"""Image augmentation and normalisation: random crops and flips in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Draws:
    """The random choices for every image in one epoch.

    down, right: (N,), offset of the crop in the padded image, 0 to 2·padding; flip: (N,), whether to mirror the image
    """

    down: np.ndarray
    right: np.ndarray
    flip: np.ndarray


def draw(seed: int, epoch: int, images: int, padding: int, flips: bool) -> Draws:
    """Return the draws of an epoch. They depend only on the arguments, not on the process or the order of calls."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    down, right = generator.integers(0, 2 * padding + 1, (2, images))
    flip = generator.integers(0, 2, images).astype(bool) & flips
    return Draws(down, right, flip)


def normalise(pixels: np.ndarray, mean: Sequence[float], deviation: Sequence[float]) -> np.ndarray:
    """Return (pixels / 255 − mean) / deviation for every channel.

    Shapes:   (N, C, H, W) bytes -> the same in fp32
    """
    scale = 1 / (255 * np.asarray(deviation, dtype=np.float32))
    shift = np.asarray(mean, dtype=np.float32) / np.asarray(deviation, dtype=np.float32)
    normal: np.ndarray = pixels * scale[:, None, None] - shift[:, None, None]
    return normal


def shift(images: np.ndarray, numbers: np.ndarray, draws: Draws, padding: int) -> np.ndarray:
    """Pad normalised images with 0 on all sides, then crop each to its original size and mirror it, as drawn.

    After normalisation, 0 is the mean of a channel, so the padding is not black. This follows He 2016b's code.
    Shapes:   images (N, C, H, W); numbers: (N,), the indices of these images in the data
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
