"""Load a run's model and examples for analysis; a stock `transformer` is loaded as post_ln or pre_ln."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.models import ARCH_MODEL_NAME_REGISTRY

from ..fairseq_patches.errors import UserError
from ..fairseq_patches.loading import load_checkpoint
from ..models import OWN_MODELS
from ..runs.run import Run
from ..runs.trained_on import find_data, setting
from ..scoring import kinds, loading
from ..scoring.loading import Loaded

OWN_MODEL = "transformer_resid"


def adapt(file: Path, state: dict[str, Any]) -> None:
    """Change the config of a stock transformer to that of our model with post_ln or pre_ln.

    Raises: UserError naming an architecture that is neither stock `transformer` nor one of ours.
    """
    config = state["cfg"]["model"]
    name = str(setting(config, "_name") or setting(config, "arch"))
    if ARCH_MODEL_NAME_REGISTRY.get(name, name) == "transformer":
        config = config if isinstance(config, Namespace) else Namespace(**config)
        before = config.encoder_normalize_before and config.decoder_normalize_before
        config._name, config.arch, config.residual = OWN_MODEL, OWN_MODEL, "pre_ln" if before else "post_ln"
        # This is a plain Namespace, because an omegaconf config does not accept Namespaces as values.
        state["cfg"] = Namespace(**{section: state["cfg"][section] for section in state["cfg"]} | {"model": config})
    elif ARCH_MODEL_NAME_REGISTRY.get(name, name) not in OWN_MODELS:
        raise UserError(f"{file}: architecture {name}: must be transformer or one of {', '.join(OWN_MODELS)}")


def load_for_analysis(path: Path, data: Path | None = None, which: str | None = None, cpu: bool = False) -> Loaded:
    """Load the checkpoint `which` of a run: by default its averaged model, or else its last checkpoint.

    Raises: ValueError or OSError naming the missing or mismatched file.
    """
    run = Run(path)
    file = run.checkpoint(which)
    folder = data or find_data(run, load_checkpoint(file))
    return loading.load(run, file, folder, cpu, partial(adapt, file))


def choose_examples(loaded: Loaded, subset: str, count: int, notes: list[str] | None = None) -> list[int]:
    """Load a subset of the data and return the indices of `count` examples spread evenly over it.

    Examples that are too long for the model are skipped, with a note.
    Raises: ValueError if the data folder does not contain the subset, or if all its examples are too long.
    """
    task = kinds.of_checkpoint(loaded.cfg)
    task.load_examples(loaded, subset)
    is_fitting = task.fits(loaded, subset)
    fitting, size = np.flatnonzero(is_fitting), len(is_fitting)
    if not len(fitting):
        raise ValueError(f"{loaded.data}: {subset}: every {task.words.example} is too long for the model")
    if len(fitting) < size and notes is not None:
        notes.append(
            f"{size - len(fitting):,} of {size:,} {task.words.examples} are too long for the model and were skipped"
        )
    places = np.unique(np.linspace(0, len(fitting) - 1, min(count, len(fitting))).astype(int))
    return fitting[places].tolist()  # type: ignore[no-any-return]
