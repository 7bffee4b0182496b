"""The first pass through a new model, which sets the initial values of structures that need it (admin)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.modules.layer_drop import LayerDropModuleList
from torch import Tensor

from ..connections import Profiler, sites

SENTENCES, LENGTH = 64, 24
SEED = 1


def sentences(dictionary: Dictionary, length: int, generator: torch.Generator) -> Tensor:
    """Return (SENTENCES, length) tokens.

    They are sampled in proportion to their counts in dict.txt, and every sentence ends with EOS.
    """
    counts = torch.tensor(dictionary.count, dtype=torch.float64)
    counts[: dictionary.nspecial] = 0
    if not counts.any():  # only special symbols, or no counts
        counts[dictionary.unk()] = 1
    tokens = torch.multinomial(counts, SENTENCES * length, replacement=True, generator=generator)
    tokens = tokens.view(SENTENCES, length)
    tokens[:, -1] = dictionary.eos()
    return tokens


def profile(model: Any, profiler: Profiler, task: Any) -> None:
    """Run a new model once, in training mode with all layers, while `profiler` sets the initial values of each stack.

    The input consists of the model's `random_source` and of random target sentences with the word frequencies of the
    training text. It is the same in every process, so all processes get the same initial values without communication.
    The random state used for training does not change.
    """
    generator = torch.Generator().manual_seed(SEED)
    source = model.random_source(task, generator)
    target = sentences(task.target_dictionary, min(LENGTH, model.decoder.max_positions()), generator)
    was_training = model.training
    drops = [(module, module.p) for module in model.modules() if isinstance(module, LayerDropModuleList)]
    with ExitStack() as passing, torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        for stack in (model.encoder, model.decoder):
            passing.enter_context(profiler(list(sites(stack).values())))
        model.train()
        for layers, _ in drops:
            layers.p = 0.0
        try:
            model(*source, target.roll(1, 1))
        finally:
            model.train(was_training)
            for layers, p in drops:
                layers.p = p
