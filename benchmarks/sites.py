"""Measure one residual site of every structure with --residual-backend compile, relative to eager.

    python benchmarks/sites.py [--structures NAME ...] [--positions 1024] [--channels 512] [--json FILE]

The site is in the middle of a 6-layer encoder, alone: without its sublayer and without dropout. A call is a forward and
a backward pass. Both backends have the same parameters, random numbers around their initial values so that no term is
0, and take turns in one process. The script adds a row per structure to its file, replaces older rows of the same
structures, and prints all rows as a Markdown table:

- speed: the eager site's time divided by the compiled one's; the median and, in brackets, the range over all rounds
- saved: the memory that the forward pass saves for the backward pass, without parameters, in vectors of C numbers per
  position
- difference of y, and of the gradient that differs most, relative to the largest element of the tensor; not measured
  for a structure that draws random numbers, which differ by backend
- first call: its duration with empty caches, after torch has started its compiler
- graphs: compiled for all 12 sites of the encoder
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import measure
import torch
from measure import clock, half_precision, machine, plot_ratios, positive, saved_bytes, speed_ratio, spread, take_turns
from torch import Tensor, nn
from torch._dynamo.utils import counters

from fairseq_resid import connections
from fairseq_resid.cli.machine import commit
from fairseq_resid.ops import BACKENDS, missing_compiler

LAYERS = 6
CALLS = 10  # per turn
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = [name for name in connections.own_names() if connections.structure(name).connection.compiles]
RESULTS = Path(__file__).resolve().parent / "results"


class Run:
    """The sites of an encoder with one backend; `site` is the one in the middle."""

    def __init__(self, args: argparse.Namespace, structure: str, backend: str) -> None:
        torch.manual_seed(1)
        layers, _ = connections.build_stack(structure, args.channels, LAYERS, backend=backend)
        self.sites = [site for layer in layers for site in layer]
        parameters = list(nn.ModuleList(self.sites).to(args.device, DTYPES[args.dtype]).parameters())
        self.unit = torch.empty(args.positions, args.channels, device=args.device, dtype=DTYPES[args.dtype])
        self.x, self.f = (torch.randn(self.unit.shape).to(self.unit).requires_grad_() for _ in range(2))
        middle = len(self.sites) // 2
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(0.1 * torch.randn(parameter.shape).to(parameter))
            state = self.sites[0].enter(self.x)
            for site in self.sites[:middle]:
                state = site.combine(state, self.f)
            self.site = self.sites[middle]
            self.gradient = torch.randn(self.site.combine(state, self.f).shape).to(self.unit)
        self.state = state.clone().requires_grad_()
        self.parameters = list(self.site.parameters())
        self.inputs = [self.state, self.f, *self.parameters]

    def forward(self) -> Tensor:
        return self.site(self.state, self.f)  # type: ignore[no-any-return]

    def call(self) -> list[Tensor]:
        """Return y and the gradients of the state, F and the parameters that y depends on."""
        y = self.forward()
        gradients = torch.autograd.grad(y, self.inputs, self.gradient, allow_unused=True)
        return [y.detach(), *(gradient for gradient in gradients if gradient is not None)]

    def calls(self) -> None:
        for _ in range(CALLS):
            self.call()

    def saved(self) -> float:
        """Return the memory that the forward pass saves, in vectors of C numbers per position."""
        return saved_bytes(self.forward, self.parameters) / self.unit.nbytes

    def encoder(self) -> None:
        """Call every site once."""
        state = self.sites[0].enter(self.x)
        for site in self.sites:
            state = site(state, self.f)


def start_compiler(device: str) -> None:
    """Compile a trivial function; the first compilation of a process also starts torch's worker processes."""
    torch.compile(lambda x: x.sin())(torch.ones(8, device=device, requires_grad=True)).sum().backward()


def differences(one: Run, other: Run) -> dict[str, float] | None:
    """Return the relative differences of y and the gradients of two runs; None if the structure is random."""
    expected, again, found = one.call(), one.call(), other.call()
    if any(not torch.equal(x, y) for x, y in zip(expected, again, strict=True)):
        return None
    relative = [
        float((x - y).double().norm(float("inf")) / x.double().norm(float("inf")).clamp(min=1e-30))
        for x, y in zip(expected, found, strict=True)
    ]
    return {"y": relative[0], "gradients": max(relative[1:])}


def compare(args: argparse.Namespace, structure: str) -> dict[str, Any]:
    """Return the row of a structure.

    Raises: ValueError if torch.compile refuses the formula.
    """
    torch.compiler.reset()
    counters.clear()
    eager, compiled = (Run(args, structure, backend) for backend in BACKENDS)
    seconds_of = clock(args.device, args.clock)
    first_call = clock(args.device, "wall")(compiled.call)  # torch compiles in other processes
    if not counters["stats"]["unique_graphs"]:
        raise ValueError("torch.compile refuses the formula")
    runs = dict(zip(BACKENDS, (eager, compiled), strict=True))
    calls = {backend: run.calls for backend, run in runs.items()}
    take_turns(calls, 1, seconds_of)
    seconds = take_turns(calls, args.rounds, seconds_of)
    compiled.encoder()
    return {
        "speed": speed_ratio(seconds, "compile", "eager"),
        "milliseconds": {name: spread([1000 * each / CALLS for each in seconds[name]]) for name in runs},
        "saved": {name: round(run.saved(), 2) for name, run in runs.items()},
        "difference": differences(eager, compiled),
        "first_call_seconds": round(first_call, 1),
        "graphs": counters["stats"]["unique_graphs"],
        **{name: getattr(args, name) for name in ("positions", "channels", "dtype", "rounds", "clock")},
        "machine": machine(args.device),
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| structure | speed | saved, eager | compiled | difference of y | of gradients | first call, s | graphs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        speed, saved = row["speed"], row["saved"]
        apart = [f"{each:.0e}" for each in row["difference"].values()] if row["difference"] else ["", ""]
        cells = [
            f"`{name}`",
            f"{speed['median']:.2f} [{speed['min']:.2f}, {speed['max']:.2f}]",
            *(f"{saved[backend]:.1f}" for backend in BACKENDS),
            *apart,
            f"{row['first_call_seconds']:.0f}",
            str(row["graphs"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--structures", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help="default: all that compile")
    add("--positions", type=positive, default=1024, metavar="N", help="default: %(default)s")
    add("--channels", type=positive, default=512, metavar="C", help="default: %(default)s")
    add("--dtype", choices=DTYPES, help="default: fp32 on a CPU, bf16 on a GPU (before Ampere fp16)")
    measure.add_flags(parser, rounds=15)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    args.dtype = args.dtype or (half_precision(args.device) if args.device == "cuda" else "fp32")
    if missing := missing_compiler():
        parser.error(missing)
    file = args.json or RESULTS / args.device / "sites.json"
    file.parent.mkdir(exist_ok=True)
    rows = json.loads(file.read_text()) if file.is_file() else {}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        start_compiler(args.device)
        for number, name in enumerate(args.structures, 1):
            print(f"{number} of {len(args.structures)}: {name}", end=" ", flush=True)
            try:
                rows[name] = row = compare(args, name)
            except ValueError as error:
                print(error)
                continue
            saved = row["saved"]
            print(f"{row['speed']['median']:.2f}, saves {saved['compile']:.1f} instead of {saved['eager']:.1f}")
            rows = {name: rows[name] for name in NAMES if name in rows}
            file.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table(rows)}")
    if args.plot:
        bars = {name: rows[name]["speed"] for name in args.structures if name in rows}
        plot_ratios(args.plot, {f"{args.positions} x {args.channels}, {args.dtype}": bars}, "speed, eager = 1")


if __name__ == "__main__":
    main()
