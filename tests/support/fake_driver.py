"""A GPU driver for Triton that launches nothing: kernels are compiled for a GPU that need not be present.

Triton must compile instead of interpreting, so use it in a separate process with TRITON_INTERPRET=0.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def resources(binary: bytes) -> tuple[int, int]:
    """Return the number of registers of each thread, and the number of 32-bit words that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"([A-Z]+):(\d+)", shown)}
    return found["REG"], (found["STACK"] + found["LOCAL"]) // 4


class Utils:
    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        """Return the module, the function and its resources. Newer versions of Triton expect one more number."""
        used = resources(binary) if binary[:4] == b"\x7fELF" and target().backend == "cuda" else (32, 0)
        more = (1024,) if "n_max_threads" in CompiledKernel._init_handles.__code__.co_names else ()
        return (0, 1, *used, *more)

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 17}


DEVICES = itertools.count()  # Triton remembers the target of each device


class Driver:
    utils = Utils()

    def __init__(self, target: GPUTarget, launched: Callable[..., None]) -> None:
        self.target, self.device = target, next(DEVICES)

        class Launcher:
            """Receives a kernel's arguments, in place of the C function that passes them to the driver."""

            def __init__(self, source: Any, metadata: Any) -> None:
                self.name = metadata.name
                self.arguments = len(source.signature)

            def __call__(self, *given: Any) -> None:
                assert len(given) - self.arguments == 9  # grid (3), stream, function, metadata (2), hooks (2)
                launched(self.name, given[:3], given[-self.arguments :])

        self.launcher_cls = Launcher

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def install(backend: str, arch: int | str, launched: Callable[..., None] = lambda *_: None) -> None:
    """Make Triton compile for a GPU, and call `launched(name, grid, arguments)` for every launch."""
    driver.set_active(Driver(GPUTarget(backend, arch, 32 if backend == "cuda" else 64), launched))


def target() -> Any:
    return driver.active.get_current_target()
