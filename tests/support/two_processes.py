"""Gradients of a criterion in two processes of gloo, one batch each: python two_processes.py RANK FOLDER."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from torch.nn.parallel import DistributedDataParallel

WRAPPERS = ("legacy_ddp", "pytorch_ddp")
TIED = {"tied": {"share_decoder_input_output_embed": True}, "untied": {}}


def criterion():
    from fairseq_resid.tasks import register
    from fairseq_resid.tasks.chunked_criterion import ChunkedLabelSmoothedCrossEntropyCriterion
    from support.models import TASK

    register()
    return ChunkedLabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)


def halves():
    """Return two batches with different numbers of words."""
    from support.models import PAD, sample

    both = []
    for rows in (slice(0, 1), slice(1, 3)):
        batch = sample()
        batch["net_input"] = {name: value[rows] for name, value in batch["net_input"].items()}
        batch["target"] = batch["target"][rows].clone()
        batch["target"][0, -2:] = PAD
        batch["ntokens"] = int(batch["target"].ne(PAD).sum())
        both.append(batch)
    return both


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main(rank: int, folder: Path) -> None:
    from support.models import build

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    loss_of, batch = criterion(), halves()[rank]
    found = {}
    for wrapper in WRAPPERS:
        for name, given in TIED.items():
            model = build(dropout=0.0, **given).train()
            if wrapper == "legacy_ddp":
                wrapped = LegacyDistributedDataParallel(model, torch.distributed.group.WORLD)
            else:
                wrapped = DistributedDataParallel(model)
            proxy = ModuleProxyWrapper(wrapped)
            assert not loss_of.reason(proxy)
            loss, *_ = loss_of(proxy, batch)
            loss.backward()
            if wrapper == "legacy_ddp":
                wrapped.all_reduce_grads()
            found[wrapper, name] = {key: 2 * value for key, value in gradients(model).items()}  # both take the mean
    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).resolve().parents[number]) for number in (1, 2)]
    main(given.rank, given.folder)
