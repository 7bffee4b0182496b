"""Launch every kernel twice on a driver that records the arguments, compare them and print the number of kernels.

The second launch bypasses Triton's own lookup of the compiled kernel (fused._launch); the driver must receive the same
arguments. test_kernel_dispatch.py runs this in a separate process, in which Triton compiles instead of interpreting.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_resid.ops import fused, occupancy
from support import fake_driver

LAUNCHES: list[list[Any]] = []


def record(name: str, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
    shown = [(each.dtype, tuple(each.shape)) if isinstance(each, Tensor) else each for each in arguments]
    LAUNCHES.append([name, *grid, *shown])


def run(c: int, offset: int, scales: tuple[Any, ...] = (1.0,)) -> None:
    """Run both passes of all forms of the kernels; x and f start at `offset` in their storages.

    scales: the scales of the shortcut in chains
    """
    x, f = (torch.zeros(6 * c + offset)[offset:].view(6, c).requires_grad_() for _ in range(2))
    norms = [torch.zeros(c, requires_grad=True) for _ in range(4)]
    gates = [torch.zeros(*shape, requires_grad=True) for shape in ((2 * c, 2 * c), (2 * c,), (2, c), (2,))]
    ones = torch.ones(6, c)
    for scale in (*scales, torch.zeros(c, requires_grad=True)):
        fused.fused_recursive_layer_norm(x, f, norms[::2], norms[1::2], 1e-5, 0.1, scale, seed=3).backward(ones)
    fused.fused_branch_layer_norm(x, f, norms[0], norms[1], 1e-5, 0.1, seed=3).backward(ones)
    fused.fused_self_adaptive_scaling(x, f, *gates, norms[0], norms[1], 1e-5, 0.1, seed=3).backward(ones)  # type: ignore[misc]


def scales() -> list[Any]:
    """Return the shortcut scales that the driver received, except those of the vector form and of x + LN(F)."""
    return [launch[17] for launch in LAUNCHES if launch[0] == "chain_forward"][:-2]


def main() -> None:
    fake_driver.install("cuda", 80, record)
    occupancy.limits = lambda _: occupancy.Limits(processors=2)  # type: ignore[assignment]
    # If x and f do not start at a multiple of 16 bytes, other kernels run for both passes of all structures and for the
    # forward pass of dropout. The backward pass of dropout gets a new, aligned tensor.
    for c, offset, known in ((64, 0, 9), (64, 1, 18), (96, 0, 27)):
        LAUNCHES.clear()
        run(c, offset)
        first = LAUNCHES[:]
        assert len(fused._compiled) == known, fused._compiled.keys()
        LAUNCHES.clear()
        run(c, offset)
        assert first == LAUNCHES, (first, LAUNCHES)
    # The type of a number selects the kernel, and no number is compiled as a constant.
    LAUNCHES.clear()
    run(64, 0, (1, 2, 1.0, 0.5))
    assert scales() == [1, 2, 1.0, 0.5], scales()
    assert [type(scale) for scale in scales()] == [int, int, float, float]
    print(len({launch[0] for launch in LAUNCHES}))


if __name__ == "__main__":
    main()
