"""The processes of a training: they compare what they train, and send each other what they have read."""

from __future__ import annotations

import argparse
import functools
import json
import os
from datetime import timedelta
from typing import Any

import torch

from .errors import UserError
from .stand_in import StandIn

# Seconds that the processes of a training wait for each other at its start.
PATIENCE = 300
# Settings that each of them has for itself.
OWN_SETTINGS = {"data", "device_id", "distributed_rank", "log_file", "num_workers", "save_dir", "user_dir"}


def _facts(cfg: Any) -> dict[str, str]:
    """Return what all processes of a training must have alike: its settings, and by name and size its data files."""
    facts = {
        f"--{name.replace('_', '-')}": repr(value)
        for section in cfg.values()
        for name, value in (vars(section) if isinstance(section, argparse.Namespace) else section or {}).items()
        if name not in OWN_SETTINGS
    }
    for folder in str(getattr(cfg["task"], "data", None) or "").split(os.pathsep):
        for file in os.scandir(folder) if os.path.isdir(folder) else ():
            if file.is_file():
                facts[f"the data's {file.name}"] = f"{file.stat().st_size} bytes"
    return facts


def _meet(facts: dict[str, str], backend: str, init_method: str, world_size: int, rank: int) -> None:
    """As init_process_group, but the processes compare their facts before they begin, and do not wait for hours.

    Raises: UserError.
    """
    who = f"rank {rank} of {world_size}"
    try:
        patience = timedelta(seconds=PATIENCE)
        store, *_ = next(torch.distributed.rendezvous(init_method, rank, world_size, timeout=patience))
        # torchrun starts all processes again where one has ended, with the same store.
        store = torch.distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        store.set(f"facts{rank}", json.dumps(facts))
        all_facts = [json.loads(store.get(f"facts{number}")) for number in range(world_size)]
        store.set(f"read{rank}", "")
        if rank == 0:  # it may hold the store, and then must not end before all have read
            store.wait([f"read{number}" for number in range(world_size)], patience)
    except (RuntimeError, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        in_use = "its port is in use: give another one" if "EADDRINUSE" in str(error) else ""
        raise UserError(
            f"{who}: the processes of this training do not meet at {init_method} within {PATIENCE} s: "
            f"{in_use or reason}"
        ) from error
    for number, theirs in enumerate(all_facts):
        names = sorted({*theirs, *all_facts[0]})
        pairs = [(name, theirs.get(name), all_facts[0].get(name)) for name in names]
        if wrong := [f"{name} is {there}, and {first} on rank 0" for name, there, first in pairs if there != first]:
            raise UserError(f"rank {number} would train something else than rank 0: {'; '.join(wrong[:5])}")
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def compare_processes() -> None:
    """Let the processes of a training end if they do not train the same, or do not find each other.

    fairseq trains on whatever data, seed and settings each of them has, and waits half an hour for one that never
    comes.
    """
    from fairseq.distributed import utils as distributed

    original = distributed.distributed_init

    @functools.wraps(original)
    def distributed_init(cfg):  # type: ignore[no-untyped-def]
        distributed.dist = StandIn(torch.distributed, init_process_group=functools.partial(_meet, _facts(cfg)))
        return original(cfg)

    distributed.distributed_init = distributed_init


def send_checkpoints() -> None:
    """Let a training on several processes go on.

    Rank 0 reads the checkpoint and sends it to the others. Its config is an OmegaConf by then, which torch >= 2.6 does
    not unpickle.
    """
    from fairseq.distributed import utils

    utils.torch = StandIn(torch, load=functools.partial(torch.load, weights_only=False))
