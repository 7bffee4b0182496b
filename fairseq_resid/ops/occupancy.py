"""How many programs of a compiled kernel a GPU runs at the same time, and how many to launch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

PARTITIONS = 4  # per multiprocessor; each has a quarter of the registers, and a warp stays in one
REGISTER_UNIT = 8  # the registers of a thread are allocated in multiples of this
MOST_PROGRAMS = 16  # per multiprocessor, even if they need few resources; newer GPUs allow up to 32
SHARED_RESERVED = 1024  # bytes of shared memory that the driver reserves for each program on Ampere and later GPUs
# The number of bytes that a multiprocessor could load while a program waits for one row. The value is an estimate for
# A100 and H100: about 1.5 µs at 20 bytes per ns. It weighs the cost of giving each program one more row against the
# memory traffic of one more program's sums.
ROW_LATENCY = 32 << 10


@dataclass(frozen=True)
class Limits:
    """The number of multiprocessors of a GPU, and the resources of each multiprocessor."""

    processors: int
    registers: int = 65536
    threads: int = 2048
    shared: int = 64 << 10
    warp: int = 32

    def programs_at_once(self, registers: int, warps: int, shared: int = 0) -> int:
        """Return how many programs the whole GPU runs at once, or one per multiprocessor if the limits allow none.

        registers: per thread; warps, and shared memory in bytes: per program
        """
        of_warp = self.warp * REGISTER_UNIT * max(-(-registers // REGISTER_UNIT), 1)
        by_registers = self.registers // PARTITIONS // of_warp * PARTITIONS // warps
        by_threads = self.threads // (self.warp * warps)
        by_shared = self.shared // (shared + SHARED_RESERVED)
        return self.processors * max(min(by_registers, by_threads, by_shared, MOST_PROGRAMS), 1)

    def programs(self, rows: int, at_once: int, sums: int) -> int:
        """Return how many programs should share the rows if each of them writes sums of this many bytes at the end.

        All programs run at once, and each processes about the same number of rows. There are as many
        programs as possible, but each additional one must save more time than writing and reading its sums takes.
        """
        cheap = math.sqrt(rows * 2 * sums / (self.processors * ROW_LATENCY))
        rows_each = max(-(-rows // at_once), round(cheap), 1)
        return -(-rows // rows_each)


@functools.cache
def limits(device: torch.device) -> Limits:
    """Return the limits of a device, with defaults for those that this version of PyTorch does not report."""
    found = torch.cuda.get_device_properties(device)
    known = {
        "registers": "regs_per_multiprocessor",
        "threads": "max_threads_per_multi_processor",
        "shared": "shared_memory_per_multiprocessor",
        "warp": "warp_size",
    }
    given = {name: getattr(found, attribute) for name, attribute in known.items() if hasattr(found, attribute)}
    return Limits(found.multi_processor_count, **given)
