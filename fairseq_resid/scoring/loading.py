"""Load the model of a checkpoint for evaluation, translation and analysis."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.text.folder import check_dictionaries
from ..fairseq_patches.loading import naming
from ..runs.run import Run
from ..runs.trained_on import direction_of, num_updates
from ..runs.training_command import TrainingCommand
from ..tasks import register


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode, its fairseq task with the data folder, and its training config."""

    run: Run
    checkpoint: Path
    data: Path
    model: Any
    task: Any
    cfg: Any
    updates: int | None
    device: torch.device

    def moved(self, sample: Any) -> Any:
        from fairseq import utils

        return utils.move_to_cuda(sample) if self.device.type == "cuda" else sample

    def started_from(self) -> str | None:
        """Return the checkpoint whose weights the run was started with; None if it started with new ones.

        A resumed run no longer has it in its config, but in run.json.
        """
        record = self.run.read_record()
        command = TrainingCommand.parse(record.command if record else [])
        settings = self.cfg.checkpoint
        files = [getattr(settings, name, None) for name in ("finetune_from_model", "restore_file")]
        files += [command.value(flag, "") for flag in ("--finetune-from-model", "--restore-file")]
        return next((str(file) for file in files if file and file != self.run.last.name), None)

    def initial(self) -> Any:
        """Return a new model with the initial values that the run's seed gives, in eval mode."""
        config = Namespace(**vars(self.cfg.model)) if isinstance(self.cfg.model, Namespace) else self.cfg.model
        config.residual_profiled = False  # so that build_model profiles the model again
        with naming(str(self.checkpoint)), torch.random.fork_rng(devices=[]):
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
    """Load a checkpoint of a run together with a data folder, onto a GPU if there is one and `cpu` is false.

    adapt: modifies the checkpoint's state before the model is built
    Raises: ValueError or OSError naming the missing or mismatched file, such as a dictionary that is not the model's.
    """
    register()
    if not data.is_dir():
        raise ValueError(f"{data}: no such data folder")
    check_dictionaries(data)
    from fairseq import checkpoint_utils

    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), {"data": str(data)})
    if adapt is not None:
        with naming(str(checkpoint)):
            adapt(state)
    if direction := direction_of(state, checkpoint, data):
        task = state["cfg"]["task"] if state.get("cfg") else state["args"]
        for name, language in zip(("source_lang", "target_lang"), direction, strict=True):
            setattr(task, name, language)
    updates = num_updates(state)
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], state=state)
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    return Loaded(run, checkpoint, data, model.to(device).eval(), task, cfg, updates, device)
