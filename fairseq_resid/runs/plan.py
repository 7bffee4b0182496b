"""How a recipe runs on the machine at hand: on how many devices, in which batches, at which precision.

A recipe's --distributed-world-size, --max-tokens and --update-freq say what its effective batch is:

    effective batch = processes × max-tokens × update-freq, in padded positions

(fairseq's --max-tokens: sentences of a batch × the longest side of any; --batch-size in its place counts sentence pairs
or images). On another number of devices update-freq, and if that does not divide max-tokens, are chosen so that it
stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..data import folders
from .devices import Gpu, Rank
from .training_command import TrainingCommand

PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "amp": ["--amp"], "fp32": []}
# What a user may say of precision in fairseq's own words.
PRECISION_FLAGS = (
    "--bf16",
    "--fp16",
    "--amp",
    "--memory-efficient-bf16",
    "--memory-efficient-fp16",
    "--tpu",
)
TOLERANCE = 0.01  # of the effective batch
MOST_STEPS = 1_000_000  # batches to an update: the numbers of them are tried one after the other
UNITS = {"--max-tokens": "padded positions", "--batch-size": "examples"}
# What the plan decides and writes itself.
PLANNED_FLAGS = ("--distributed-world-size", "--update-freq", *UNITS)


@dataclass(frozen=True)
class Batches:
    """How an effective batch is dealt out to processes; size: what one takes at a time, in the unit of `limit`."""

    world_size: int
    limit: str
    size: int
    update_freq: int
    pairs: int | None = None  # in one batch of one process at most, if that is limited too

    @classmethod
    def of(cls, command: TrainingCommand) -> Batches | None:
        """Return what the flags of a command say; None if they do not say how large a batch is."""
        limit = next((flag for flag in UNITS if flag in command), None)
        if limit is None:
            return None
        world_size, size, steps = (
            command.integer(flag, 1) or 1 for flag in ("--distributed-world-size", limit, "--update-freq")
        )
        pairs = command.integer("--batch-size") if limit == "--max-tokens" else None
        return cls(world_size, limit, size, steps, pairs)

    @property
    def effective(self) -> int:
        return self.world_size * self.size * self.update_freq

    @property
    def product(self) -> str:
        """The effective batch as the user reads it."""
        factors = f"{self.world_size} × {self.size:,} × {self.update_freq}"
        return f"processes × {self.limit[2:]} × update-freq = {factors} = {self.effective:,} {UNITS[self.limit]}"

    def has_same_shape(self, other: Batches) -> bool:
        """Say whether another way of dealing gives the same effective batch, within the 1% that a plan may be off."""
        near = abs(self.effective - other.effective) <= TOLERANCE * other.effective
        return near and (self.limit, self.pairs) == (other.limit, other.pairs)


@dataclass(frozen=True)
class Plan:
    """What was decided, and the flags of fairseq-train that say so."""

    devices: str
    batches: Batches
    effective_batch: int
    precision: str
    why: str
    argv: tuple[str, ...]

    def line(self) -> str:
        """Return what the user reads before anything is done."""
        off = "" if self.batches.effective == self.effective_batch else f", for {self.effective_batch:,}"
        pairs = f", of at most {self.batches.pairs:,} pairs a process (--batch-size)" if self.batches.pairs else ""
        return f"{self.devices}; effective batch {self.batches.product}{off}{pairs}; {self.precision} ({self.why})"

    def record(self) -> dict[str, str | int]:
        """Return what run.json says of it."""
        return {
            "devices": self.devices,
            "processes": self.batches.world_size,
            self.batches.limit[2:]: self.batches.size,
            "update-freq": self.batches.update_freq,
            "effective batch": self.batches.effective,
            "unit": UNITS[self.batches.limit],
            "precision": self.precision,
            **({"pairs a process at most": self.batches.pairs} if self.batches.pairs else {}),
        }


def batch(effective: int, world_size: int, most: int, update_freq: int | None, limit: str) -> tuple[int, int]:
    """Return what one process takes at a time, at most `most`, and the update-freq, so that the effective batch stays.

    Of the numbers of steps that hold it within 1%, the one nearest to it is taken, unless update-freq is given.
    Raises: ValueError if it cannot be had within 1%.
    """

    def filled(steps: int) -> int:
        return min(most, max(1, round(effective / (world_size * steps))))

    def off(steps: int) -> int:
        return abs(world_size * filled(steps) * steps - effective)

    enough = math.ceil(effective / (world_size * most))
    if update_freq is None and enough > MOST_STEPS:
        raise ValueError(
            f"effective batch: {effective:,}: needs --update-freq {enough:,} with {world_size} processes × {limit} "
            f"{most:,}; at most {MOST_STEPS:,}"
        )
    least = max(1, math.ceil(effective * (1 - TOLERANCE) / (world_size * most)))
    steps = update_freq or min(range(least, enough + 1), key=off)
    size = filled(steps)
    got = world_size * size * steps
    if abs(got - effective) > TOLERANCE * effective:
        given = "" if update_freq is None else f", --update-freq {update_freq}"
        raise ValueError(
            f"effective batch: {world_size} processes × {limit} {size:,} × update-freq {steps} = {got:,} "
            f"{UNITS[limit]}, {abs(got - effective) / effective:.1%} off the {effective:,} asked for ({limit} at most "
            f"{most:,}{given}); allowed is 1%. --effective-batch {got} trains with this one"
        )
    return size, steps


def own_precision(given: TrainingCommand) -> list[str]:
    """Return what the user says of precision in fairseq's own flags.

    Raises: ValueError if these contradict each other.
    """
    own = [flag[2:] for flag in PRECISION_FLAGS if flag in given]
    if len({flag.removeprefix("memory-efficient-") for flag in own}) > 1:
        raise ValueError(f"--{' and --'.join(own)}: give one of them")
    return own


def choose_precision(asked: str, given: TrainingCommand, gpus: Sequence[Gpu]) -> tuple[str, str, list[str]]:
    """Return the precision, why, and the flags that ask fairseq for it.

    bf16 from compute capability 8.0 (Ampere), which has it in its tensor cores and needs no loss scale; fp16 from 7.0
    (Volta); fp32 on older GPUs and on the CPU. For images amp in place of either 16-bit form: it keeps weights and the
    running statistics of batch normalisation in fp32, and bf16 would round these to 8 bits.
    """
    own = own_precision(given)
    if own and asked != "auto":
        raise ValueError(f"--precision {asked} and --{own[0]}: give one of them")
    if own:
        return " ".join(own), "as given", []
    if asked != "auto":
        return asked, "as given", PRECISIONS[asked]
    if not gpus:
        return "fp32", "CPU", []
    capability = min(gpu.capability for gpu in gpus)
    number = ".".join(map(str, capability))
    name = "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
    if name != "fp32" and folders.of_task(given.value("--task", "")).has_running_statistics:
        return "amp", f"compute capability {number}, batch normalisation in fp32", PRECISIONS["amp"]
    return name, f"compute capability {number}", PRECISIONS[name]


def make(
    recipe: TrainingCommand,
    extra: TrainingCommand,
    gpus: Sequence[Gpu],
    rank: Rank | None,
    effective: int | None = None,
    precision: str = "auto",
) -> Plan:
    """Return the plan of a recipe's flags and the user's, on these GPUs of this machine.

    Raises: ValueError naming the flags that contradict each other, the devices, or the effective batch.
    """
    given = recipe.and_then(extra)
    limit = next((flag for flag in UNITS if flag in given), None)
    if limit is None:
        raise ValueError("neither the recipe nor a flag says how large a batch is: give --max-tokens or --batch-size")
    if effective is None:
        asked = Batches.of(recipe if limit in recipe else given)
        effective = asked.effective if asked else 1
    byhand = extra.integer("--distributed-world-size")
    if rank:
        world_size = rank.world_size
        if byhand not in (None, world_size):
            raise ValueError(f"--distributed-world-size {byhand}: the launcher started {world_size} processes")
    else:
        world_size = byhand or max(1, len(gpus))
        if world_size > max(1, len(gpus)):
            raise ValueError(
                f"--distributed-world-size {byhand}: here are {len(gpus)} GPUs; processes on several machines, or on "
                "the CPU, are started by torchrun or srun"
            )
    size, steps = batch(
        effective,
        world_size,
        given.integer(limit) or 1,
        extra.integer("--update-freq"),
        limit,
    )
    name, why, argv = choose_precision(precision, given, gpus)
    argv = ["--distributed-world-size", str(world_size), limit, str(size), *argv]
    pairs = given.integer("--batch-size") if limit == "--max-tokens" else None
    if pairs:
        argv += ["--batch-size", str(pairs)]
    if steps > 1:
        argv += ["--update-freq", str(steps)]
    if rank and not gpus:
        for flag, value in (("--distributed-backend", "gloo"), ("--ddp-backend", "legacy_ddp")):
            argv += [] if flag in given else [flag, value]
    if gpus:
        names = sorted({gpu.name for gpu in gpus})
        devices = f"{world_size} × {', '.join(names)}"
    else:
        devices = f"CPU, {world_size} processes" if world_size > 1 else "CPU"
    return Plan(devices, Batches(world_size, limit, size, steps, pairs), effective, name, why, tuple(argv))
