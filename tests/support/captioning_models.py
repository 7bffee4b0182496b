"""Small captioning models that need no data."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

from support import models
from support.models import DICT, EOS

WIDTH = 7
TASK = Namespace(source_dictionary=None, target_dictionary=DICT, width=WIDTH)


def build(arch: str = "captioning_resid_tiny", **given: Any) -> Any:
    return models.build(arch, task=TASK, **given)


def images(lengths: tuple[int, ...] = (3, 5, 2), seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    regions = torch.rand(len(lengths), max(lengths), WIDTH + 4, generator=generator)
    for row, length in enumerate(lengths):
        regions[row, length:] = 0
    return regions, torch.tensor(lengths)


def captions(rows: int = 3, steps: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    previous = torch.randint(4, len(DICT), (rows, steps), generator=generator)
    previous[:, 0] = EOS
    return previous


def logits(model: Any, regions: torch.Tensor, lengths: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(regions, lengths, previous)[0]
    return found
