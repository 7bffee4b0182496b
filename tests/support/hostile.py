"""Malicious checkpoints, and the results of loading them.

`write(folder, healthy, command)` writes one file of every kind. `python -m support.hostile FILE:FILE:...` loads every
file with both loaders in a separate process and prints the results as JSON.
"""

from __future__ import annotations

import copyreg
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support.hostile_files import MISFITS, archive, changes, files
from support.hostile_pickles import EXTENSION, programs, state_of

State = dict[str, Any]

SECONDS = 15  # time limit for loading a file on a busy machine


def write(folder: Path, healthy: Path, command: str) -> dict[str, Path]:
    """Write a file of every kind; return the files by name. Those in `MISFITS` only fail when their model is built."""
    folder.mkdir()
    made: dict[str, Path] = {}

    def fresh() -> State:
        state: State = torch.load(healthy, weights_only=False)
        return state

    def file(name: str) -> Path:
        made[name] = folder / f"{len(made)}.pt"
        return made[name]

    for name, code in programs(command).items():
        archive(file(name), state_of(code))
    state = fresh()
    for name, make in files(command).items():
        make(file(name), state)
    for name, change in changes(command).items():
        state = fresh()
        change(state)
        torch.save(state, file(name))
    for name, misfit in MISFITS.items():
        state = fresh()
        misfit(state)
        torch.save(state, file(name))
    return made


def memory(key: str) -> int:
    """Return a value such as VmRSS, in KiB, from the status file of this process."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if key in line)


def loaded(loaders: dict[str, Callable[[str], object]], file: Path) -> dict[str, Any]:
    """Load a file with all loaders in a child process; return messages, growth of peak memory in MiB, and seconds."""
    reading, writing = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        said = {}
        for name, load in loaders.items():
            try:
                said[name] = f"loaded {type(load(str(file))).__name__}"
            except (ValueError, OSError) as error:
                said[name] = str(error)
            except BaseException as error:
                said[name] = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps([said, (memory("VmHWM") - before) / 1024]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        content = answer.read()
    _, status = os.waitpid(child, 0)
    said, grown = json.loads(content) if content else (dict.fromkeys(loaders, f"died with status {status}"), 0.0)
    return {"said": said, "grown": grown, "seconds": time.monotonic() - begun}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from fairseq import checkpoint_utils

    import fairseq_resid.models  # noqa: F401  (applies the patches)
    from fairseq_resid.fairseq_patches import load_checkpoint

    torch.set_num_threads(1)
    copyreg.add_extension("os", "system", EXTENSION)
    loaders = {"load_checkpoint": load_checkpoint, "fairseq": checkpoint_utils.load_checkpoint_to_cpu}
    found = {file: loaded(loaders, Path(file)) for file in sys.argv[1].split(":")}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
