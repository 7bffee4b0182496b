"""What the evaluation of one run needs, found and checked before anything is computed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..data.images import folder as image_folder
from ..data.text import folder as data_folder
from ..data.text.folder import Corpus
from ..fairseq_patches import BETTER_TRANSFORMER_COPIES, load_checkpoint
from ..files import read_lines
from ..foreign import say
from ..runs.run import Run
from ..runs.settings import Settings
from ..runs.trained_on import find_data, setting
from . import averaging, images

# fairseq's dictionary has four symbols before those in its file: <s>, <pad>, </s>, <unk>.
SPECIAL = 4
# Not parameters: fairseq keeps these small marks among the weights.
BUFFER = re.compile(r"(^|\.)(version|_float_tensor|running_mean|running_var|num_batches_tracked)$")
# Saved, never trained.
DEAD_COPY = re.compile(rf"\.layers\.\d+\.({'|'.join(BETTER_TRANSFORMER_COPIES)})$")


@dataclass(frozen=True)
class Job:
    """One run's evaluation, its inputs found and checked.

    checkpoints: those that are averaged; further: those of averages of other epochs, by the average's name
    """

    run: Run
    corpus: Corpus
    subset: str
    references: list[str]
    checkpoints: list[Path]
    architecture: str
    parameters: int
    cpu: bool
    settings: Settings
    further: dict[str, list[Path]] = field(default_factory=dict)

    def averages(self) -> dict[str, list[Path]]:
        """Return the averages that are scored, by name, with the checkpoints that each is made from."""
        return {"averaged": self.checkpoints, **self.further}


def count_parameters(model: dict[str, Any]) -> int:
    """Return the number of parameters in a state dict: each shared one once, without buffers and dead copies."""
    return sum(
        tensor.numel()
        for tensor in {
            averaging.memory_of(tensor): tensor
            for name, tensor in model.items()
            if isinstance(tensor, torch.Tensor) and not BUFFER.search(name) and not DEAD_COPY.search(name)
        }.values()
    )


# Architectures whose name says their structure.
SAID = ("transformer_sas", "transformer_rskip_ln")


def architecture(state: dict[str, Any]) -> str:
    """Return the architecture a checkpoint names, with the residual if that is chosen by --residual."""
    model = (state.get("cfg") or {}).get("model", state.get("args"))
    name = str(setting(model, "arch") or setting(model, "_name"))
    residual = setting(model, "residual")
    is_said = name.startswith(SAID) or setting(model, "no_shortcut")
    return f"{name} --residual {residual}" if residual and not is_said else name


def is_of_images(state: dict[str, Any]) -> bool:
    """Say whether a checkpoint is of an image model."""
    cfg = state.get("cfg") or {}
    return (
        setting(cfg.get("task"), "_name") == image_folder.TASK or setting(cfg.get("task"), "task") == image_folder.TASK
    )


def check_dictionaries(run: Run, state: dict[str, Any], corpus: Corpus) -> None:
    """Check that a data folder's dictionaries are those that a run was trained with.

    Raises: ValueError naming the dictionary that is missing, or has other words than the model or its own data folder.
    """
    try:
        trained_on = find_data(run, state)
    except ValueError:  # not there any more: sizes alone can be compared
        trained_on = corpus.path
    for language, embedding in (
        (corpus.source, "encoder.embed_tokens.weight"),
        (corpus.target, "decoder.embed_tokens.weight"),
    ):
        file = corpus.path / f"dict.{language}.txt"
        own = trained_on / file.name
        words = read_lines(file)
        rows = state["model"][embedding].size(0) if embedding in state["model"] else len(words) + SPECIAL
        if len(words) + SPECIAL != rows:
            raise ValueError(f"{file}: {len(words):,} words, but {run.last} was trained with {rows - SPECIAL:,}")
        if own.is_file() and read_lines(own) != words:
            raise ValueError(f"{file}: other words than {own}, which {run.path} was trained with")


def find(path: Path, data: Path | None, settings: Settings, subset: str, cpu: bool) -> Job | images.ImageJob:
    """Find and check everything that the evaluation of one run needs, before anything is computed.

    Raises: ValueError or OSError naming what is missing.
    """
    if not path.is_dir():
        raise ValueError(f"{path}: no such run folder")
    run = Run(path)
    state = load_checkpoint(run.last) if run.last.is_file() else None
    if state is not None and is_of_images(state):
        return images.find(run, state, data, subset, architecture(state), count_parameters(state["model"]), cpu)
    checkpoints = averaging.find(path, settings.last, settings.by)
    further = {}
    if settings.epochs:
        first, last = settings.epochs
        try:
            further[f"epochs{first}-{last}"] = averaging.epochs(path, first, last)
        except ValueError:
            if settings.are_epochs_required:
                raise
            say(f"{path}: the training ended before epoch {last}: no average of epochs {first} to {last}")
    if state is None:
        raise ValueError(f"{run.last}: no such checkpoint")
    corpus = Corpus.read(data or find_data(run, state))
    data_folder.check(corpus.path)
    check_dictionaries(run, state, corpus)
    reference = corpus.reference(subset)
    if subset in corpus.skipped:
        raise ValueError(
            f"--subset {subset}: {corpus.path} was prepared without it ({corpus.skipped[subset]}); "
            "prepare the corpus again with its files"
        )
    if not reference.is_file():
        raise ValueError(f"{reference}: no such reference text; --subset names the parts to translate")
    if not any(file.suffix == ".bin" for file in corpus.inputs(subset)):
        raise ValueError(f"{corpus.path}: holds no binarised {subset} set")
    references = corpus.references(subset)
    parameters = count_parameters(state["model"])
    return Job(run, corpus, subset, references, checkpoints, architecture(state), parameters, cpu, settings, further)
