"""The inputs of one run's evaluation, located and checked before any computation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..console import say
from ..fairseq_patches.loading import load_checkpoint
from ..fairseq_patches.model import BETTER_TRANSFORMER_COPIES
from ..runs import recovery
from ..runs.run import Run
from ..runs.settings import Settings
from ..runs.trained_on import find_data, is_trained_on, setting
from ..scoring import kinds
from ..scoring.task import ScoringJob
from . import averaging

# Buffers that fairseq and torch store in the state dict; they are not parameters.
BUFFER = re.compile(r"(^|\.)(version|_float_tensor|running_mean|running_var|num_batches_tracked)$")
# Tensors that are saved but never trained.
DEAD_COPY = re.compile(rf"\.layers\.\d+\.({'|'.join(BETTER_TRANSFORMER_COPIES)})$")


def count_parameters(model: dict[str, Any]) -> int:
    """Return the number of parameters in a state dict. Shared ones count once; buffers and dead copies do not count."""
    return sum(
        tensor.numel()
        for tensor in {
            averaging.memory_of(tensor): tensor
            for name, tensor in model.items()
            if isinstance(tensor, torch.Tensor) and not BUFFER.search(name) and not DEAD_COPY.search(name)
        }.values()
    )


# Architectures whose names already contain the structure.
STRUCTURED_ARCHITECTURES = ("transformer_sas", "transformer_rskip_ln", "captioning_sas", "captioning_rskip_ln")


def architecture(state: dict[str, Any]) -> str:
    """Return the architecture of a checkpoint, with --residual if that option chose the structure."""
    model = (state.get("cfg") or {}).get("model", state.get("args"))
    name = str(setting(model, "arch") or setting(model, "_name"))
    residual = setting(model, "residual")
    is_in_name = name.startswith(STRUCTURED_ARCHITECTURES) or setting(model, "no_shortcut")
    return f"{name} --residual {residual}" if residual and not is_in_name else name


def find_job(path: Path, data: Path | None, settings: Settings, subset: str, cpu: bool) -> ScoringJob[Any]:
    """Find and check all inputs of one run's evaluation, before any computation.

    Raises: ValueError or OSError naming the missing or mismatched file.
    """
    run = Run(path)
    run.require()
    recovery.repair_to_evaluate(run)
    state = load_checkpoint(run.last) if run.last.is_file() else {}
    cfg = state.get("cfg") or {}
    task = kinds.of_checkpoint(cfg)
    if settings.tokenize and "BLEU" not in task.studied.measures:
        raise ValueError(
            f"--tokenize {settings.tokenize}: applies to BLEU, but {path} is a model of {task.folder.content}"
        )
    averages = averages_of(path, settings) if task.has_averages else {}
    if not state:
        raise ValueError(f"{run.last}: no such checkpoint")
    opened = task.open_data(data or find_data(run, state), subset, run, state)
    if settings.tokenize:
        opened = replace(opened, tokenize=settings.tokenize)
    return ScoringJob(
        run,
        task,
        opened,
        subset,
        architecture(state),
        count_parameters(state["model"]),
        cpu,
        settings,
        averages,
        is_trained_on(cfg, subset),
        task.task_flags(cfg, opened),
    )


def averages_of(path: Path, settings: Settings) -> dict[str, list[Path]]:
    """Return the checkpoints that make up each average to be scored, by the name of the average.

    Raises: see `averaging.last_checkpoints` and, if `settings` requires all epochs, `averaging.epoch_checkpoints`.
    """
    averages = {"averaged": averaging.last_checkpoints(path, settings.last, settings.by)}
    for first, last in settings.epochs:
        try:
            averages[f"epochs{first}-{last}"] = averaging.epoch_checkpoints(path, first, last, settings.by)
        except ValueError:
            if settings.are_epochs_required:
                raise
            say(f"{path}: some checkpoints of epochs {first} to {last} do not exist; skipping their average")
    return averages
