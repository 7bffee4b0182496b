"""Models that fairseq builds from Python, and batches for them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, tasks

from conftest import STOCK
from fairseq_resid import connections

ARCHS = {"transformer_sas_tiny": "sas", "transformer_rskip_ln_tiny": "rskip_ln", "transformer_resid_tiny": "post_ln"}
archs = pytest.mark.parametrize("arch", ARCHS)


def built(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return the task and a new model for parsed arguments."""
    task = tasks.setup_task(args)
    torch.manual_seed(0)
    return task, task.build_model(args)


def stock(corpus: Path) -> Any:
    """Return fairseq's own model at the size of our _tiny architectures."""
    parser = options.get_training_parser()
    return built(options.parse_args_and_arch(parser, [str(corpus), "--task", "translation", *STOCK]))[1]


def described(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the --residual name and the options of each site."""
    return [site.described for site in model.modules() if isinstance(site, connections.ResidualConnection)]


def pairs(task: Any, split: str = "valid", count: int = 8) -> dict[str, Any]:
    """Return the first pairs of a split as one batch."""
    if split not in task.datasets:
        task.load_dataset(split)
    dataset = task.dataset(split)
    return dataset.collater([dataset[number] for number in range(count)])


def logits(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch["net_input"])[0]
