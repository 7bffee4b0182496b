"""The devices of a training run: the GPUs of this machine, and the processes that a launcher started."""

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
    """A CUDA device: its name, memory in bytes and compute capability."""

    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def line(self) -> str:
        """The description of the GPU in run.json."""
        return f"{self.name}, {self.memory / 2**30:.0f} GiB"


def gpus() -> list[Gpu]:
    """Return the GPUs that fairseq will see.

    A child process queries them: a CUDA context in this process would occupy memory during training.
    Raises: ValueError with the last line of torch's error if the query fails.
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
    """This process in a group of processes that train together, with one process per device.

    flags: passed to fairseq-train; environment: additional variables that the rendezvous needs
    """

    rank: int
    world_size: int
    flags: tuple[str, ...]
    environment: Mapping[str, str]


def rank(environ: Mapping[str, str], given: TrainingCommand, local_gpus: int) -> Rank | None:
    """Return the rank of this process; None if it is the only one.

    The rank comes from fairseq's own flags, from torchrun's variables, or from the variables of a Slurm step (`srun`; a
    batch script by itself is not a step). The variables of torchrun and Slurm are converted to fairseq's flags: fairseq
    reads the environment too, but on a CPU it would start several unconnected training runs in the same folder.

    Raises: ValueError if WORLD_SIZE is set without RANK; see also `slurm_rendezvous`.
    """
    if "--distributed-init-method" in given:
        return Rank(given.integer("--distributed-rank"), given.integer("--distributed-world-size", 1), (), {})
    if environ.get("WORLD_SIZE", "1") != "1":
        if "RANK" not in environ:  # every process would take itself for rank 0, and wait for the others
            raise ValueError(f"WORLD_SIZE={environ['WORLD_SIZE']}: RANK must be set too, as torchrun does")
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"} <= environ.keys():
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return None
    number, size, local = (int(environ.get(name, "0")) for name in names)
    if size == 1:
        return None
    more = {} if names[0] == "RANK" else slurm_rendezvous(environ)
    # Some launchers make only one GPU visible to each process, as number 0.
    device = local % local_gpus if local_gpus else 0
    argv = ["--distributed-init-method", "env://", "--distributed-rank", str(number), "--distributed-no-spawn"]
    return Rank(number, size, (*argv, "--device-id", str(device)), more)


def slurm_rendezvous(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the address and port of rank 0, on the first host of a Slurm step.

    The port is the same in all processes of the step, and unlikely to be used by another step.
    Raises: OSError if scontrol, which expands host lists, is missing.
    """
    hosts = environ.get("SLURM_STEP_NODELIST", "")
    done = subprocess.run(["scontrol", "show", "hostnames", hosts], capture_output=True, text=True, check=True)
    step = int(environ.get("SLURM_JOB_ID", "0")) * 64 + int(environ.get("SLURM_STEP_ID", "0"))
    return {"MASTER_ADDR": done.stdout.split()[0], "MASTER_PORT": str(20_000 + step % 40_000)}
