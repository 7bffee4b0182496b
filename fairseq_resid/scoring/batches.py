"""Batches of sentence pairs, or of images and captions, for analysis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..models import likelihood
from .loading import Loaded
from .task import FREQUENCIES, POSITIONS, Batch


@dataclass(frozen=True)
class TextBatch(Batch):
    """Pairs with a sentence or an image as source and a sentence as target.

    target: (B, T); masks: by stack, (T, B), true where there is no padding; places: by stack, (T, B), the position in
    the sentence, from 0; frequencies: by stack, (T, B), the frequency class of the input token; padding: the padding id
    Stacks that read regions of images have no places or frequencies.
    """

    net_input: dict[str, Any]
    target: Tensor
    masks: dict[str, Tensor]
    places: dict[str, Tensor]
    frequencies: dict[str, Tensor]
    padding: int

    def nll(self, model: Any) -> Tensor:
        return likelihood.token_nll(model, self.net_input, self.target, self.padding)

    @property
    def predicted(self) -> int:
        return int(self.masks["decoder"].sum())

    def kept(self, stack: str) -> Tensor | None:
        return self.masks[stack]

    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        if stack not in self.places:
            return {}
        mask = self.masks[stack]
        return {
            "position": (self.places[stack][mask], POSITIONS),
            "frequency": (self.frequencies[stack][mask], FREQUENCIES),
        }

    def by_example(self, state: Tensor) -> Tensor:
        return state.transpose(0, 1)


def frequency_classes(dictionary: Any) -> Tensor:
    """Return the frequency class of every token, from its rank in the dictionary, which is sorted by frequency."""
    ranks = torch.arange(len(dictionary)) - dictionary.nspecial + 1
    bounds = torch.tensor([round(10 ** (step / 2)) for step in range(2, 1 + FREQUENCIES)])
    classes = torch.bucketize(ranks, bounds)
    classes[: dictionary.nspecial] = 0
    return classes


def batches(loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
    """Yield the chosen pairs, longest first, in batches with at most `max_tokens` padded positions per side."""
    dataset = loaded.task.dataset(subset)
    found = {"encoder": loaded.task.source_dictionary, "decoder": loaded.task.target_dictionary}
    dictionaries = {stack: each for stack, each in found.items() if each is not None}
    classes = {stack: frequency_classes(each).to(loaded.device) for stack, each in dictionaries.items()}
    lengths = {index: int(max(dataset.src_sizes[index], dataset.tgt_sizes[index])) for index in chosen}
    waiting = sorted(chosen, key=lambda index: (-lengths[index], index))
    while waiting:
        together = max(1, max_tokens // max(1, lengths[waiting[0]]))
        now, waiting = waiting[:together], waiting[together:]
        sample = loaded.moved(dataset.collater([dataset[index] for index in now]))
        net_input, target = sample["net_input"], sample["target"]
        padding = loaded.task.target_dictionary.pad()
        tokens = {"encoder": net_input["src_tokens"].transpose(0, 1), "decoder": net_input["prev_output_tokens"].t()}
        regions = torch.arange(net_input["src_tokens"].size(1), device=target.device).unsqueeze(1)
        masks = {
            "encoder": tokens["encoder"].ne(padding) if "encoder" in classes else regions < net_input["src_lengths"],
            "decoder": target.ne(padding).t(),
        }
        places = {stack: (masks[stack].long().cumsum(0) - 1).clamp(min=0) for stack in classes}
        frequencies = {stack: classes[stack][tokens[stack]] for stack in classes}
        yield TextBatch(net_input, target, masks, places, frequencies, padding)
