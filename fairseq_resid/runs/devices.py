"""What there is to train on: this machine's GPUs, and the processes that a launcher has started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from .training_command import TrainingCommand

PROBE = """
import json, torch
gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
print(json.dumps([[gpu.name, gpu.total_memory, gpu.major, gpu.minor] for gpu in gpus]))
"""


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: its name, memory in bytes, compute capability."""

    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def line(self) -> str:
        """What a run's record says of it."""
        return f"{self.name}, {self.memory / 2**30:.0f} GiB"


def gpus() -> list[Gpu]:
    """Return the GPUs that fairseq will see.

    Asked in a process of its own: a context on a GPU would take memory from the training as long as this one lives.
    Raises: ValueError with the last line that torch says if it fails.
    """
    import torch

    if not torch.cuda.is_available():
        return []
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"torch cannot use the GPUs: {done.stderr.strip().splitlines()[-1]}")
    return [Gpu(name, memory, (major, minor)) for name, memory, major, minor in json.loads(done.stdout)]


@dataclass(frozen=True)
class Rank:
    """This process among those that train together, each on a device of its own.

    flags: fairseq's, that say so; environment: what the rendezvous needs beside what is there already
    """

    rank: int
    world_size: int
    flags: tuple[str, ...]
    environment: Mapping[str, str]


def rank(environ: Mapping[str, str], given: TrainingCommand, local_gpus: int) -> Rank | None:
    """Return which process of several this is, None if it is the only one that was started.

    Read from fairseq's own flags if they are given by hand, from torchrun's variables, or those of a Slurm step
    (`srun`; a batch script itself is no step). Torchrun's and Slurm's become flags of fairseq: it guesses from the
    environment too, but on CPU starts unconnected trainings in one folder.

    Raises: ValueError if what a launcher says is not whole.
    """
    if "--distributed-init-method" in given:
        number = given.integer("--distributed-rank", 0, least=0) or 0
        size = given.integer("--distributed-world-size", 1) or 1
        if number >= size:
            raise ValueError(f"--distributed-rank {number}: must be below --distributed-world-size {size}")
        return Rank(number, size, (), {})
    if environ.get("WORLD_SIZE", "1") != "1":
        names, needed = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), {"RANK", "MASTER_ADDR", "MASTER_PORT"}
        if missing := sorted(needed - environ.keys()):
            raise ValueError(
                f"WORLD_SIZE={environ['WORLD_SIZE']} is set, and {', '.join(missing)} not: half a launcher"
            )
    elif {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"} <= environ.keys():
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return None
    variables = ", ".join(f"{name}={environ.get(name)}" for name in names)
    try:
        number, size, local = (int(environ.get(name, "0")) for name in names)
    except ValueError:
        raise ValueError(f"the launcher's variables are no numbers: {variables}") from None
    if not 0 <= number < size:
        raise ValueError(f"the launcher's variables contradict each other: {variables}")
    if size == 1:
        return None
    more = {"MASTER_ADDR": first_host(environ), "MASTER_PORT": str(port(environ))} if names[0] != "RANK" else {}
    # A launcher may show each process its own GPU alone, as number 0.
    device = local % local_gpus if local_gpus else 0
    argv = ["--distributed-init-method", "env://", "--distributed-rank", str(number), "--distributed-no-spawn"]
    return Rank(number, size, (*argv, "--device-id", str(device)), more)


def first_host(environ: Mapping[str, str]) -> str:
    """Return the first host of a Slurm step, where rank 0 runs.

    Raises: ValueError if scontrol, which knows how host lists are written, is missing or fails.
    """
    hosts = environ.get("SLURM_STEP_NODELIST", "")
    try:
        done = subprocess.run(["scontrol", "show", "hostnames", hosts], capture_output=True, text=True, check=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        raise ValueError(f"SLURM_STEP_NODELIST={hosts}: scontrol does not say which hosts these are") from None


def port(environ: Mapping[str, str]) -> int:
    """Return a port for a Slurm step: the same in all its processes, and most likely no other step's."""
    return 20_000 + (int(environ.get("SLURM_JOB_ID", "0")) * 64 + int(environ.get("SLURM_STEP_ID", "0"))) % 40_000
