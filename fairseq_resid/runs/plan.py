"""How a recipe runs on this machine: devices, batches and precision.

A recipe's --distributed-world-size, --max-tokens and --update-freq define its effective batch:

    effective batch = processes × max-tokens × update-freq, in padded positions

fairseq's --max-tokens limits the number of sentences in a batch × the length of its longest sentence, source or target.
With --batch-size instead, examples are counted: sentence pairs, images, or pairs of an image and a caption. On a
different number of devices, update-freq is adapted to keep the effective batch. If that is not enough, max-tokens or
batch-size is adapted too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..data import folders
from .devices import Gpu, Rank
from .training_command import TrainingCommand

PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "amp": ["--amp"], "fp32": []}
PRECISION_FLAGS = ("--bf16", "--fp16", "--amp", "--memory-efficient-bf16", "--memory-efficient-fp16", "--tpu")
TOLERANCE = 0.01  # of the effective batch
UNITS = {"--max-tokens": "padded positions", "--batch-size": "examples"}
# The flags that the plan sets.
PLANNED_FLAGS = ("--distributed-world-size", "--update-freq", *UNITS)


@dataclass(frozen=True)
class Batches:
    """How an effective batch is split over processes; size: size of one process's batch, in the unit of `limit`."""

    world_size: int
    limit: str
    size: int
    update_freq: int
    pairs: int | None = None  # maximum in one batch of one process, if both --batch-size and --max-tokens are given

    @classmethod
    def of(cls, command: TrainingCommand) -> Batches | None:
        """Read the flags of a command; None if they set no batch size."""
        limit = next((flag for flag in UNITS if command.integer(flag)), None)
        if limit is None:
            return None
        world_size, size, steps = (
            command.integer(flag, 1) for flag in ("--distributed-world-size", limit, "--update-freq")
        )
        pairs = command.integer("--batch-size") or None if limit == "--max-tokens" else None
        return cls(world_size, limit, size, steps, pairs)

    @property
    def effective(self) -> int:
        return self.world_size * self.size * self.update_freq

    @property
    def product(self) -> str:
        """The effective batch written as a product, for users."""
        factors = f"{self.world_size} × {self.size:,} × {self.update_freq}"
        return f"processes × {self.limit[2:]} × update-freq = {factors} = {self.effective:,} {UNITS[self.limit]}"

    def has_same_shape(self, other: Batches) -> bool:
        """Return whether another split has the same effective batch, within the plan's tolerance of 1%."""
        near = abs(self.effective - other.effective) <= TOLERANCE * other.effective
        return near and (self.limit, self.pairs) == (other.limit, other.pairs)


@dataclass(frozen=True)
class Plan:
    """The plan of a training run, and its flags for fairseq-train."""

    devices: str
    batches: Batches
    effective_batch: int
    precision: str
    why: str
    argv: tuple[str, ...]

    def line(self) -> str:
        off = "" if self.batches.effective == self.effective_batch else f", for {self.effective_batch:,}"
        pairs = f", at most {self.batches.pairs:,} pairs per process (--batch-size)" if self.batches.pairs else ""
        return f"{self.devices}; effective batch {self.batches.product}{off}{pairs}; {self.precision} ({self.why})"

    def record(self) -> dict[str, str | int]:
        return {
            "devices": self.devices,
            "processes": self.batches.world_size,
            self.batches.limit[2:]: self.batches.size,
            "update-freq": self.batches.update_freq,
            "effective batch": self.batches.effective,
            "unit": UNITS[self.batches.limit],
            "precision": self.precision,
            **({"maximum pairs per process": self.batches.pairs} if self.batches.pairs else {}),
        }


def split_batch(effective: int, world_size: int, most: int, update_freq: int | None, limit: str) -> tuple[int, int]:
    """Return the batch size of one process, at most `most`, and the update-freq that keep the effective batch.

    If update-freq is not given, the value that comes closest to the effective batch is chosen.
    Raises: ValueError if the effective batch would change by more than 1%.
    """

    def filled(steps: int) -> int:
        return min(most, max(1, round(effective / (world_size * steps))))

    def off(steps: int) -> int:
        return abs(world_size * filled(steps) * steps - effective)

    enough = math.ceil(effective / (world_size * most))
    least = max(1, math.ceil(effective * (1 - TOLERANCE) / (world_size * most)))
    steps = update_freq or min(range(least, enough + 1), key=off)
    size = filled(steps)
    got = world_size * size * steps
    if abs(got - effective) > TOLERANCE * effective:
        given = "" if update_freq is None else f", --update-freq {update_freq}"
        raise ValueError(
            f"effective batch: {world_size} processes × {limit} {size:,} × update-freq {steps} = {got:,} "
            f"{UNITS[limit]} instead of {effective:,} ({limit} at most {most:,}{given}): "
            f"{abs(got - effective) / effective:.1%} off; at most 1% is allowed; to accept it, give --effective-batch "
            f"{got}"
        )
    return size, steps


def choose_precision(asked: str, given: TrainingCommand, gpus: Sequence[Gpu]) -> tuple[str, str, list[str]]:
    """Return the precision, the reason, and fairseq's flags for it.

    From compute capability 8.0 (Ampere), the first with bf16 tensor cores, "auto" chooses bf16, because it needs no
    loss scale, except for sharded models, for which fairseq does not support it. Otherwise "auto" chooses fp16 from 7.0
    (Volta), and fp32 on older GPUs and CPUs. For image models it chooses amp instead of bf16 and fp16, because amp
    keeps the weights and the running statistics of batch normalisation in fp32.

    Raises: ValueError naming the flags that contradict each other.
    """
    own = [flag[2:] for flag in PRECISION_FLAGS if flag in given]
    if len({flag.removeprefix("memory-efficient-") for flag in own}) > 1:
        raise ValueError(f"--{' and --'.join(own)}: give only one of them")
    if own and asked != "auto":
        raise ValueError(f"--precision {asked} and --{own[0]}: give only one of them")
    if own:
        return " ".join(own), "as given", []
    if asked != "auto":
        return asked, "as given", PRECISIONS[asked]
    if not gpus:
        return "fp32", "CPU", []
    is_sharded = given.value("--ddp-backend", "") == "fully_sharded"
    capability = min(gpu.capability for gpu in gpus)
    number = ".".join(map(str, capability))
    name = "bf16" if capability >= (8, 0) and not is_sharded else "fp16" if capability >= (7, 0) else "fp32"
    if name != "fp32" and folders.of_task(given.value("--task", "")).has_running_statistics:
        return "amp", f"compute capability {number}, batch normalisation in fp32", PRECISIONS["amp"]
    why = f"compute capability {number}" + (", --ddp-backend fully_sharded" if is_sharded else "")
    return name, why, PRECISIONS[name]


def plan_training(
    recipe: TrainingCommand,
    extra: TrainingCommand,
    gpus: Sequence[Gpu],
    rank: Rank | None,
    effective: int | None = None,
    precision: str = "auto",
) -> Plan:
    """Return the plan for a recipe's flags and the user's on these GPUs.

    Raises: ValueError naming contradictory flags, the devices or the effective batch.
    """
    given = recipe.and_then(extra)
    most = Batches.of(given)
    if most is None:
        raise ValueError("batch size: neither the recipe nor a flag sets it; give --max-tokens or --batch-size")
    if effective is None:
        asked = Batches.of(recipe if most.limit in recipe else given)
        effective = asked.effective if asked else 1
    byhand = extra.integer("--distributed-world-size")
    if rank and byhand not in (0, rank.world_size):
        raise ValueError(
            f"--distributed-world-size {byhand}: the launcher started {rank.world_size} processes; omit this flag"
        )
    world_size = rank.world_size if rank else byhand or max(1, len(gpus))
    if not rank and world_size > max(1, len(gpus)):
        raise ValueError(
            f"--distributed-world-size {byhand}: more than the number of visible GPUs ({len(gpus)}); on several "
            "machines or on the CPU, start the processes with torchrun or srun"
        )
    size, steps = split_batch(effective, world_size, most.size, extra.integer("--update-freq") or None, most.limit)
    name, why, argv = choose_precision(precision, given, gpus)
    argv = ["--distributed-world-size", str(world_size), most.limit, str(size), *argv]
    if most.pairs:
        argv += ["--batch-size", str(most.pairs)]
    if steps > 1:
        argv += ["--update-freq", str(steps)]
    if rank and not gpus:
        for flag, value in (("--distributed-backend", "gloo"), ("--ddp-backend", "legacy_ddp")):
            argv += [] if flag in given else [flag, value]
    if gpus:
        devices = f"{world_size} × {', '.join(sorted({gpu.name for gpu in gpus}))}"
    else:
        devices = f"CPU, {world_size} processes" if world_size > 1 else "CPU"
    batches = replace(most, world_size=world_size, size=size, update_freq=steps)
    return Plan(devices, batches, effective, name, why, tuple(argv))
