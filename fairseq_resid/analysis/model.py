"""A run's model and text, loaded for analysis: any structure of ours, and stock `transformer` as post_ln or pre_ln."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from torch import Tensor

from ..fairseq_patches import load_checkpoint
from ..models import OWN_MODELS, likelihood
from ..runs.run import Run
from ..runs.trained_on import find_data, is_trained_on, setting
from ..tasks import images as _images  # noqa: F401  (bridges fairseq, registers tasks and architectures)
from .results import FREQUENCIES, POSITIONS

OWN_MODEL = "transformer_resid"
IMAGES = 100  # of a batch; the result does not depend on it


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode, fairseq's task with its data, and the config that it was trained with."""

    run: Run
    checkpoint: Path
    data: Path
    model: Any
    task: Any
    cfg: Any
    updates: int | None
    device: torch.device

    @property
    def example(self) -> str:
        """What the model reads."""
        return "image" if hasattr(self.task, "known") else "sentence"

    def was_trained_on(self, subset: str) -> bool:
        """Say whether a part of the data was, by its name, part of the training."""
        return is_trained_on(self.cfg, subset)

    def initial(self) -> Any:
        """Return the model as it was before its first update: built anew with the run's seed, in eval mode."""
        config = Namespace(**vars(self.cfg.model)) if isinstance(self.cfg.model, Namespace) else self.cfg.model
        config.residual_profiled = False  # what a first pass sets, it sets again
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.cfg.common.seed)
            model = self.task.build_model(config)
        return model.to(self.device).eval()


def checkpoint(run: Run, which: str | None) -> Path:
    """Return the file that is analysed: the averaged model, or without one the last checkpoint, or the one named.

    Raises: ValueError naming the folder or the file that is missing.
    """
    if not run.path.is_dir():
        raise ValueError(f"{run.path}: no such run folder")
    file = run.path / which if which else run.averaged if run.averaged.is_file() else run.last
    if not file.is_file():
        raise ValueError(f"{file}: no such checkpoint: fairseq-resid train makes one")
    return file


def load(path: Path, data: Path | None = None, which: str | None = None, cpu: bool = False) -> Loaded:
    """Load a run's averaged model, or without one its last checkpoint; `which` names another file of the run.

    Raises: ValueError or OSError naming what is missing or does not fit.
    """
    run = Run(path)
    file = checkpoint(run, which)
    folder = data or find_data(run, load_checkpoint(file))
    state = checkpoint_utils.load_checkpoint_to_cpu(str(file), {"data": str(folder)})
    config = state["cfg"]["model"]
    name = str(setting(config, "_name") or setting(config, "arch"))
    if ARCH_MODEL_NAME_REGISTRY.get(name, name) == "transformer":
        config = config if isinstance(config, Namespace) else Namespace(**config)
        before = config.encoder_normalize_before and config.decoder_normalize_before
        config._name, config.arch, config.residual = OWN_MODEL, OWN_MODEL, "pre_ln" if before else "post_ln"
        # A plain Namespace: omegaconf takes no other object in.
        state["cfg"] = Namespace(**{section: state["cfg"][section] for section in state["cfg"]} | {"model": config})
    elif ARCH_MODEL_NAME_REGISTRY.get(name, name) not in OWN_MODELS:
        raise ValueError(
            f"{file}: a model of the architecture {name}: analysis knows transformer and {', '.join(OWN_MODELS)}"
        )
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(file)], state=state)
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    history = state.get("optimizer_history")
    updates = history[-1].get("num_updates") if history else None
    return Loaded(run, file, folder, model.to(device).eval(), task, cfg, updates, device)


class Batch(ABC):
    """Examples that a model reads together: sentence pairs, or images."""

    net_input: dict[str, Any]

    @abstractmethod
    def nll(self, model: Any) -> Tensor:
        """Return the NLL in nats of everything that is predicted, 0 at padding; it sums to that of the examples."""

    @property
    @abstractmethod
    def predicted(self) -> int:
        """How much is predicted: target tokens, or images."""

    @abstractmethod
    def kept(self, stack: str) -> Tensor | None:
        """Return where a stack's positions are no padding; None if there is none."""

    @abstractmethod
    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        """Return how positions are classed, by what: the class of each, and how many there are."""

    @abstractmethod
    def by_example(self, state: Tensor) -> Tensor:
        """Return a state with the examples in its first dimension."""


@dataclass(frozen=True)
class TextBatch(Batch):
    """Sentence pairs.

    target: (B, T); masks: by stack, (T, B), true where there is no padding; places: by stack, (T, B), the place in the
    sentence, from 0; frequencies: by stack, (T, B), the class of the token that is read there; padding: its token
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
        mask = self.masks[stack]
        return {
            "position": (self.places[stack][mask], POSITIONS),
            "frequency": (self.frequencies[stack][mask], FREQUENCIES),
        }

    def by_example(self, state: Tensor) -> Tensor:
        return state.transpose(0, 1)


@dataclass(frozen=True)
class ImageBatch(Batch):
    """Images. target: (N,), their classes."""

    net_input: dict[str, Any]
    target: Tensor

    def nll(self, model: Any) -> Tensor:
        log_probabilities = model.get_normalized_probs(model(**self.net_input), log_probs=True)
        return -log_probabilities.gather(1, self.target.unsqueeze(1)).squeeze(1)

    @property
    def predicted(self) -> int:
        return len(self.target)

    def kept(self, stack: str) -> Tensor | None:
        return None

    def classes(self, stack: str) -> dict[str, tuple[Tensor, int]]:
        return {}

    def by_example(self, state: Tensor) -> Tensor:
        return state


def frequency_classes(dictionary: Any) -> Tensor:
    """Return the class of every token by its rank in the dictionary, whose order is by frequency."""
    ranks = torch.arange(len(dictionary)) - dictionary.nspecial + 1
    bounds = torch.tensor([round(10 ** (step / 2)) for step in range(2, 1 + FREQUENCIES)])
    classes = torch.bucketize(ranks, bounds)
    classes[: dictionary.nspecial] = 0
    return classes


def choose(loaded: Loaded, subset: str, count: int, notes: list[str] | None = None) -> list[int]:
    """Load a part of the data, and return the numbers of `count` sentences spread evenly over it.

    A sentence that is longer than the model takes is not among them; a note says how many are.
    Raises: ValueError if the data folder has no such part, or no sentence that fits.
    """
    if loaded.example == "image":
        loaded.task.datasets[subset] = loaded.task.open(subset)  # as it is, even if it was trained on
    else:
        try:
            loaded.task.load_dataset(subset)
        except FileNotFoundError:
            raise ValueError(f"{loaded.data}: holds no binarised {subset} set") from None
    fitting = np.flatnonzero(fits(loaded, subset))
    size = len(loaded.task.dataset(subset))
    if not len(fitting):
        raise ValueError(f"{loaded.data}: {subset}: no sentence is short enough for the model")
    if len(fitting) < size and notes is not None:
        notes.append(f"{size - len(fitting):,} of {size:,} sentences are longer than the model takes")
    places = np.unique(np.linspace(0, len(fitting) - 1, min(count, len(fitting))).astype(int))
    return fitting[places].tolist()  # type: ignore[no-any-return]


def fits(loaded: Loaded, subset: str) -> Any:
    """Return, of every sentence of a loaded part, whether both its sides are short enough for the model."""
    dataset = loaded.task.dataset(subset)
    if loaded.example == "image":
        return np.ones(len(dataset), dtype=bool)
    longest = loaded.model.max_positions()
    return (np.asarray(dataset.src_sizes) <= longest[0]) & (np.asarray(dataset.tgt_sizes) <= longest[1])


def batches(loaded: Loaded, subset: str, chosen: list[int], max_tokens: int) -> Iterator[Batch]:
    """Yield the chosen sentences, long ones first, in batches of at most so many padded positions on a side.

    Images come in batches of at most IMAGES.
    """
    dataset = loaded.task.dataset(subset)
    if loaded.example == "image":
        for start in range(0, len(chosen), IMAGES):
            sample = dataset.collater(chosen[start : start + IMAGES])
            sample = utils.move_to_cuda(sample) if loaded.device.type == "cuda" else sample
            yield ImageBatch(sample["net_input"], sample["target"])
        return
    dictionaries = {"encoder": loaded.task.source_dictionary, "decoder": loaded.task.target_dictionary}
    classes = {stack: frequency_classes(each).to(loaded.device) for stack, each in dictionaries.items()}
    lengths = {index: int(max(dataset.src_sizes[index], dataset.tgt_sizes[index])) for index in chosen}
    waiting = sorted(chosen, key=lambda index: (-lengths[index], index))
    while waiting:
        together = max(1, max_tokens // max(1, lengths[waiting[0]]))
        now, waiting = waiting[:together], waiting[together:]
        sample = dataset.collater([dataset[index] for index in now])
        if loaded.device.type == "cuda":
            sample = utils.move_to_cuda(sample)
        net_input, target = sample["net_input"], sample["target"]
        padding = loaded.task.source_dictionary.pad()
        masks = {"encoder": net_input["src_tokens"].ne(padding).t(), "decoder": target.ne(padding).t()}
        tokens = {"encoder": net_input["src_tokens"].t(), "decoder": net_input["prev_output_tokens"].t()}
        places = {stack: (mask.long().cumsum(0) - 1).clamp(min=0) for stack, mask in masks.items()}
        frequencies = {stack: classes[stack][tokens[stack]] for stack in masks}
        yield TextBatch(net_input, target, masks, places, frequencies, padding)
