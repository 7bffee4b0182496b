"""Launch every kernel twice on a driver that records its arguments, compare the arguments and print the number of
kernels.

The second launch bypasses Triton's own lookup of the compiled kernel (fused._launch); the driver must receive the same
arguments. test_kernel_dispatch.py runs this in a separate process, in which Triton compiles instead of interpreting.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver

from fairseq_resid.ops import fused

LAUNCHES: list[list[Any]] = []


class Utils:
    def load_binary(self, *_: Any) -> tuple[int, ...]:
        # Module, function, and resources that the function uses. Newer Triton versions expect one more number.
        return (
            (0, 1, 32, 0, 1024) if "n_max_threads" in CompiledKernel._init_handles.__code__.co_names else (0, 1, 32, 0)
        )

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 17}


class Launcher:
    """Receives a kernel's arguments in place of the C function that passes them to the driver."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name = metadata.name
        self.arguments = len(source.signature)

    def __call__(self, *given: Any) -> None:
        grid, arguments = given[:3], given[-self.arguments :]
        assert len(given) - self.arguments == 9  # grid (3), stream, function, metadata (2), hooks (2)
        shown = [(each.dtype, tuple(each.shape)) if isinstance(each, Tensor) else each for each in arguments]
        LAUNCHES.append([self.name, *grid, *shown])


class Driver:
    utils, launcher_cls = Utils(), Launcher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)


def run(c: int, offset: int) -> None:
    """Run both structures forward and backward; x and f start at `offset` in their storages."""
    x, f = (torch.zeros(6 * c + offset)[offset:].view(6, c).requires_grad_() for _ in range(2))
    norms = [torch.zeros(c, requires_grad=True) for _ in range(4)]
    gates = [torch.zeros(*shape, requires_grad=True) for shape in ((2 * c, 2 * c), (2 * c,), (2, c), (2,))]
    ones = torch.ones(6, c)
    fused.fused_recursive_layer_norm(x, f, norms[::2], norms[1::2], 1e-5, 0.1, seed=3).backward(ones)
    fused.fused_self_adaptive_scaling(x, f, *gates, norms[0], norms[1], 1e-5, 0.1, seed=3).backward(ones)  # type: ignore[misc]


def main() -> None:
    driver.set_active(Driver())
    for c, offset, known in ((64, 0, 5), (64, 1, 5), (96, 0, 10)):
        LAUNCHES.clear()
        run(c, offset)
        first = LAUNCHES[:]
        assert len(fused._compiled) == known, fused._compiled.keys()
        LAUNCHES.clear()
        run(c, offset)
        assert first == LAUNCHES, (first, LAUNCHES)
    print(len({launch[0] for launch in LAUNCHES}))


if __name__ == "__main__":
    main()
