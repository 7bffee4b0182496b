"""The one way to load a checkpoint's model, for evaluation, translation and analysis."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..runs.run import Run
from ..runs.trained_on import is_trained_on, num_updates
from . import register


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode, fairseq's task with its data folder, and the config that it was trained with."""

    run: Run
    checkpoint: Path
    data: Path
    model: Any
    task: Any
    cfg: Any
    updates: int | None
    device: torch.device

    def moved(self, sample: Any) -> Any:
        """Return a batch of fairseq's, on the model's device."""
        from fairseq import utils

        return utils.move_to_cuda(sample) if self.device.type == "cuda" else sample

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


def load(
    run: Run,
    checkpoint: Path,
    data: Path,
    cpu: bool = False,
    adapt: Callable[[dict[str, Any]], None] | None = None,
) -> Loaded:
    """Load a checkpoint of a run with a data folder, on the GPU if there is one.

    adapt: changes the checkpoint's config before the model is built
    Raises: ValueError or OSError naming what is missing or does not fit.
    """
    register()
    from fairseq import checkpoint_utils

    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), {"data": str(data)})
    if adapt is not None:
        adapt(state)
    updates = num_updates(state)
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], state=state)
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    return Loaded(run, checkpoint, data, model.to(device).eval(), task, cfg, updates, device)
