"""Training on several processes: they compare their settings and data, and load the checkpoint of rank 0."""

from __future__ import annotations

import argparse
import functools
import json
import os
from datetime import timedelta
from typing import Any

import torch

from .errors import UserError
from .patching import StandIn, wrap

# Seconds that processes wait for each other at startup.
PATIENCE = 300
# Settings that may differ between processes.
OWN_SETTINGS = {"data", "device_id", "distributed_rank", "log_file", "num_workers", "save_dir", "user_dir"}


def _facts(cfg: Any) -> dict[str, str]:
    """Return the facts that must be equal in all processes: settings except OWN_SETTINGS, and sizes of data files."""
    facts = {
        f"--{name.replace('_', '-')}": repr(value)
        for section in cfg.values()
        for name, value in (vars(section) if isinstance(section, argparse.Namespace) else section or {}).items()
        if name not in OWN_SETTINGS
    }
    for folder in str(getattr(cfg["task"], "data", None) or "").split(os.pathsep):
        for file in os.scandir(folder) if os.path.isdir(folder) else ():
            if file.is_file():
                facts[f"data file {file.name}"] = f"{file.stat().st_size} bytes"
    return facts


def _meet(facts: dict[str, str], backend: str, init_method: str, world_size: int, rank: int) -> None:
    """Initialise the process group, but first compare the facts of all processes; time out after PATIENCE seconds.

    Raises: UserError if the processes differ or cannot connect.
    """
    try:
        patience = timedelta(seconds=PATIENCE)
        store, *_ = next(torch.distributed.rendezvous(init_method, rank, world_size, timeout=patience))
        # If a process dies, torchrun restarts all of them with the same store, so every attempt has its own keys.
        store = torch.distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        store.set(f"facts{rank}", json.dumps(facts))
        all_facts = [json.loads(store.get(f"facts{number}")) for number in range(world_size)]
        store.set(f"read{rank}", "")
        if rank == 0:  # it may host the store and must not exit before all have read it
            store.wait([f"read{number}" for number in range(world_size)], patience)
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(
            f"rank {rank} of {world_size}: the processes of this training run could not connect at {init_method} "
            f"within {PATIENCE} s: {' '.join(str(error).split())[:300]}"
        ) from error
    first = all_facts[0]
    for number, theirs in enumerate(all_facts):
        differing = [name for name in sorted({*theirs, *first}) if theirs.get(name) != first.get(name)]
        if wrong := [f"{name} is {theirs.get(name)}, but {first.get(name)} on rank 0" for name in differing]:
            raise UserError(f"rank {number}: settings or data differ from those of rank 0: {'; '.join(wrong[:5])}")
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def compare_processes() -> None:
    """Stop training if the processes have different settings or data files of different sizes, or cannot connect.

    fairseq would train with whatever data, seed and settings each process has, and would wait half an hour for a
    missing process.
    """
    from fairseq.distributed import utils as distributed

    @wrap(distributed)
    def distributed_init(original, cfg):
        distributed.dist = StandIn(torch.distributed, init_process_group=functools.partial(_meet, _facts(cfg)))
        return original(cfg)


def send_checkpoints() -> None:
    """Let training on several processes resume.

    Rank 0 reads the checkpoint and sends it to the others. By then its config is an OmegaConf object, which
    torch >= 2.6 does not unpickle by default.
    """
    from fairseq.distributed import utils

    utils.torch = StandIn(torch, load=functools.partial(torch.load, weights_only=False))
