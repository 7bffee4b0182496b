"""Shared code of the benchmarks: timing in turns, ratios with their spread, machine, JSON, plot."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_resid.cli import machine as this_machine
from fairseq_resid.runs.launch import VARIABLES

Seconds = dict[Any, list[float]]  # by name, one value per round
# Processor time excludes other processes on a busy machine, but sums over threads.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Clock = Callable[[Callable[[], object]], float]


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be an integer of at least 1")
    return int(text)


def add_flags(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the flags that all benchmarks share."""
    devices = ["cpu", "cuda"]
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=devices, default=found, help="default: cuda if there is a GPU")
    parser.add_argument("--rounds", type=positive, default=rounds, help="number of turns (default: %(default)s)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="use processor time on a busy CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot to FILE (png, svg, pdf)")


def check_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Check the shared flags before anything is measured."""
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    if args.clock == "processor" and (args.device == "cuda" or torch.get_num_threads() > 1):
        parser.error("--clock processor: requires --device cpu and one thread (OMP_NUM_THREADS=1)")
    for flag in ("json", "plot"):
        path = getattr(args, flag)
        if path and not path.absolute().parent.is_dir():
            parser.error(f"--{flag} {path}: no such folder: {path.absolute().parent}")
    if args.plot and find_spec("matplotlib") is None:
        parser.error(f"--plot {args.plot}: matplotlib is not installed (pip install matplotlib)")
    if args.plot and args.plot.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--plot {args.plot}: must end in .png, .svg or .pdf")


def check_data(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Check that --data is a binarised data folder."""
    if args.data and len(list(args.data.glob("dict.*.txt"))) < 2:
        parser.error(
            f"--data {args.data}: not a binarised data folder; must contain dict.SOURCE.txt and dict.TARGET.txt"
        )


def half_precision(device: str) -> str:
    """Return the 16-bit type to measure: bf16, or fp16 on a GPU that does not support bf16."""
    return "fp16" if device == "cuda" and torch.cuda.get_device_capability() < (8, 0) else "bf16"


def synchronise(device: str) -> None:
    """Wait until the GPU has finished all work."""
    if device == "cuda":
        torch.cuda.synchronize()


def saved_bytes(forward: Callable[[], object], known: Iterable[torch.Tensor]) -> int:
    """Return the bytes that autograd saves in a forward pass. Each storage is counted once, in full.

    known: tensors whose storages are not counted
    """
    addresses = {tensor.untyped_storage().data_ptr() for tensor in known}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in addresses:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()  # kept alive until all storages are counted, so that no address is reused
    del result
    return sum(sizes.values())


def clock(device: str, kind: str) -> Clock:
    """Return a function that times one call with one of CLOCKS, including the work it starts on a GPU."""

    def seconds(call: Callable[[], object]) -> float:
        synchronise(device)
        start = CLOCKS[kind]()
        call()
        synchronise(device)
        return CLOCKS[kind]() - start

    return seconds


def take_turns(calls: Mapping[Any, Callable[[], object]], rounds: int, seconds_of: Clock) -> Seconds:
    """Time every call once per round. Every second round runs in reverse order, so that slow drift cancels out."""
    seconds: Seconds = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls) if number % 2 == 0 else reversed(list(calls)):
            seconds[name].append(seconds_of(calls[name]))
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, quartiles and extremes."""
    points = {"median": 50, "q1": 25, "q3": 75, "min": 0, "max": 100}
    return {name: float(f"{np.percentile(values, point):.4g}") for name, point in points.items()}


def ratios(seconds: Seconds, name: Hashable, base: Hashable) -> list[float]:
    """Return the speed of `name` relative to `base` in every round; 1.5 means 50% faster."""
    return [theirs / ours for ours, theirs in zip(seconds[name], seconds[base], strict=True)]


def speed_ratio(seconds: Seconds, name: Hashable, base: Hashable) -> dict[str, float]:
    return spread(ratios(seconds, name, base))


def shown(found: dict[str, float]) -> str:
    """Return a median and its quartiles as text."""
    return f"{found['median']:.3f} [{found['q1']:.3f}, {found['q3']:.3f}]"


def machine(device: str) -> dict[str, Any]:
    """Return the hardware, software and current load of the machine."""
    packages = ("torch", "fairseq", "fairseq-fixed", "apex")
    return {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cpu": this_machine.processor(),
        "cores": this_machine.cores(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": this_machine.python(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        **this_machine.versions(packages),
    }


def hardware(found: dict[str, Any]) -> str:
    """Return a description of a machine on one line."""
    processors = f"{found['cores']} cores of {found['cpu']}, {found['threads']} threads"
    software = ", ".join(f"{name} {found[name]}" for name in ("torch", "fairseq", "fairseq-fixed") if name in found)
    return f"{found['gpu'] or 'No GPU'}; {processors}; Python {found['python']}, {software}"


def write(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write the results of a benchmark to --json, together with its command."""
    if args.json:
        words = [str(Path(sys.argv[0]).name), *sys.argv[1:]]
        head = {
            "command": f"python benchmarks/{shlex.join(words)}",
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        }
        args.json.write_text(json.dumps({**head, **found}, indent=1) + "\n")


def plot_ratios(path: Path, panels: dict[str, dict[str, dict[str, float]]], label: str) -> None:
    """Plot a panel of bars for each {title: {bar: spread}}: the median, with whiskers over all rounds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    widest = max(map(len, panels.values()))
    size = (max(5, 1.1 * widest * len(panels)), 3.6)
    figure, axes = pyplot.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, (title, bars) in zip(axes[0], panels.items(), strict=True):
        heights = [bar["median"] for bar in bars.values()]
        below = [bar["median"] - bar["min"] for bar in bars.values()]
        above = [bar["max"] - bar["median"] for bar in bars.values()]
        axis.bar(list(bars), heights, yerr=[below, above], capsize=3, color="tab:blue")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_title(title, fontsize="small")
        axis.tick_params(axis="x", labelrotation=45, labelsize="small")
    axes[0][0].set_ylabel(label)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
