"""Measure the speed and memory of one residual site, by implementation: eager, torch.compile, and others if they are
installed.

    python benchmarks/ops.py [--json FILE] [--plot FILE]

A site consists of the dropout, sums and norms of rskip_ln with λ = 1, 2, 3, wskip_ln or res_post_norm, or of all of sas
including its gates. On a GPU, the script measures the median GPU time at 4k, 16k, 32k and 131k rows (positions), C =
512 and 1024, in bf16 and fp16; the host's time per call; and peak memory. It also measures the bandwidth of a copy, and
computes the share of it that every site except sas reaches. For this, the forward pass counts as moving 3u and the
backward pass 5u (3u for res_post_norm), where u is one C-vector per row. On a CPU, the script measures the median
wall-clock time at small sizes. On both, it measures the memory saved for the backward pass. Implementations take turns,
and ratios are computed within a round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import measure
import torch
from measure import (
    clock,
    half_precision,
    machine,
    plot_ratios,
    positive,
    ratios,
    shown,
    speed_ratio,
    spread,
    take_turns,
    write,
)
from torch import Tensor, nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before importing triton: a CPU needs its interpreter

from fairseq_resid import connections

DROPOUT = 0.1
SITES: dict[str, dict[str, Any]] = {
    "rskip_ln-1": {"name": "rskip_ln", "skip_lambda": 1},
    "rskip_ln-2": {"name": "rskip_ln", "skip_lambda": 2},
    "rskip_ln-3": {"name": "rskip_ln", "skip_lambda": 3},
    "wskip_ln": {"name": "wskip_ln"},
    "res_post_norm": {"name": "res_post_norm"},
    "sas": {"name": "sas"},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# u, for any λ: x, F -> y; x, F, dL/dy -> dx, dF. x + LN(F) has dx = dL/dy and needs no x: F, dL/dy -> dF.
MOVED = {site: {"forward": 3, "backward": 3 if site == "res_post_norm" else 5} for site in SITES if site != "sas"}
BOTH = "forward+backward"
COPY = ("copy",)
COPY_BYTES = 2**29
HOST_ROWS, HOST_CALLS = 4096, 200
# Calls per turn on a GPU, a buffer larger than any L2 cache, and about a millisecond for the host to launch a call.
GPU_CALLS, CACHE_BYTES, WAIT_CYCLES = 20, 2**28, 2_000_000
Call = Callable[[], object]


# --- implementations -----------------------------------------------------------------------------------------------


def eager(site: str, channels: int) -> nn.Module:
    return connections.build(**SITES[site], place=channels, dropout=DROPOUT, backend="eager")


def compiled(site: str, channels: int) -> Any:
    # fullgraph: raise instead of falling back to eager if compilation fails or happens too often.
    return torch.compile(eager(site, channels), dynamic=False, fullgraph=True)


def fused(site: str, channels: int) -> nn.Module:
    return connections.build(**SITES[site], place=channels, dropout=DROPOUT, backend="triton")


class NormChain(nn.Module):
    """rskip_ln built from another package's norm, which computes dropout, sum and norm."""

    def __init__(self, site: str, channels: int, norm: Callable[[Tensor, Tensor, Any, float], Tensor]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(SITES[site]["skip_lambda"]))
        self.norm = norm

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        dropout = DROPOUT
        for norm in self.norms:
            f = self.norm(x, f, norm, dropout)
            dropout = 0.0
        return f


def liger(site: str, channels: int) -> nn.Module:
    from liger_kernel.transformers.functional import liger_layer_norm

    def add_norm(x: Tensor, f: Tensor, norm: nn.LayerNorm, dropout: float) -> Tensor:
        return liger_layer_norm(x + nn.functional.dropout(f, dropout), norm.weight, norm.bias, norm.eps)

    return NormChain(site, channels, add_norm)


def flash_attention(site: str, channels: int) -> nn.Module:
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    def add_norm(x: Tensor, f: Tensor, norm: nn.LayerNorm, dropout: float) -> Tensor:
        return layer_norm_fn(f, norm.weight, norm.bias, residual=x, dropout_p=dropout, eps=norm.eps)

    return NormChain(site, channels, add_norm)


EAGER, FUSED = "eager", "triton"
IMPLEMENTATIONS: dict[str, Callable[[str, int], Any]] = {
    EAGER: eager,
    "torch.compile": compiled,
    FUSED: fused,
    "liger": liger,
    "flash-attn": flash_attention,
}
PACKAGES = {FUSED: "triton", "liger": "liger_kernel", "flash-attn": "flash_attn"}
ONLY_RSKIP = ("liger", "flash-attn")


def obstacle(implementation: str, device: str) -> str:
    """Return why an implementation cannot be timed here, or an empty string if it can."""
    package = PACKAGES.get(implementation)
    if package and device == "cpu" and not (implementation == FUSED and measure.INTERPRETED):
        return "requires a GPU"
    return f"requires the package {package}" if package and find_spec(package) is None else ""


def candidates(implementations: list[str]) -> list[tuple[str, str]]:
    """Return every site with every implementation that supports it."""
    pairs = product(SITES, implementations)
    return [(site, by) for site, by in pairs if SITES[site]["name"] == "rskip_ln" or by not in ONLY_RSKIP]


# --- measuring -----------------------------------------------------------------------------------------------------


@dataclass
class Input:
    """The inputs of a site, and the gradient of its output."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: str

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.x, self.f, self.gradient = (
            torch.randn(self.shape, device=self.device, dtype=self.dtype).requires_grad_(needed)
            for needed in (True, True, False)
        )
        self.unit = self.x.numel() * self.x.element_size()


class Run:
    """A site in one implementation on an input, with the calls to time."""

    def __init__(self, site: str, implementation: str, given: Input) -> None:
        self.given = given
        self.site = IMPLEMENTATIONS[implementation](site, given.shape[1]).to(device=given.device, dtype=given.dtype)
        self.inputs = [given.x, given.f, *self.site.parameters()]
        self.y: Tensor | None = None

    def forward(self) -> Tensor:
        return self.site(self.given.x, self.given.f)

    def backward(self) -> None:
        if self.y is None:
            self.y = self.forward()
        torch.autograd.grad(self.y, self.inputs, self.given.gradient, retain_graph=True)

    def both(self) -> None:
        torch.autograd.grad(self.forward(), self.inputs, self.given.gradient)

    def host_calls(self) -> None:
        for _ in range(HOST_CALLS):
            self.both()

    def saved(self) -> float:
        """Return the memory that autograd saves beyond x and the parameters, in u; each tensor counts once."""
        return measure.saved_bytes(self.forward, [self.given.x, *self.site.parameters()]) / self.given.unit

    def peak(self) -> float:
        """Return the peak memory of a forward and backward pass, beyond the memory allocated before them, in u."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.both()
        return (torch.cuda.max_memory_allocated() - before) / self.given.unit


def gpu_clock(call: Call) -> float:
    """Return the seconds of a call on the GPU: the median of many, each with a cold L2 cache.

    This works like triton.testing.do_bench, but the GPU waits until the host has launched the whole call. With few
    rows, the host is slower than the kernels; its time is measured separately.
    """
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    milliseconds = []
    for _ in range(GPU_CALLS):
        cache.zero_()
        torch.cuda._sleep(WAIT_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        milliseconds.append(start.elapsed_time(end))
    return statistics.median(milliseconds) / 1000


def host_clock(call: Call) -> float:
    """Return the seconds that the host needs to launch a call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def time_configuration(args: argparse.Namespace, shape: tuple[int, int], dtype: str) -> list[dict[str, Any]]:
    """Time every site and implementation at one shape and dtype; return a row of results for each pass."""
    torch.compiler.reset()  # otherwise it stops compiling after a few shapes
    gpu = args.device == "cuda"
    given = Input(shape, DTYPES[dtype], args.device)
    runs = {(site, by): Run(site, by, given) for site, by in candidates(args.implementations)}
    calls: dict[tuple[str, ...], Call] = {}
    for (site, by), run in runs.items():
        calls[site, by, "forward"] = run.forward
        calls[site, by, BOTH] = run.both
        if by != "torch.compile":  # its backward frees saved tensors and cannot be repeated
            calls[site, by, "backward"] = run.backward
    if gpu:
        source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
        calls[COPY] = lambda: target.copy_(source)
    own_clock = clock(args.device, args.clock)
    take_turns(calls, 1, own_clock)
    seconds = take_turns(calls, args.rounds, gpu_clock if gpu else own_clock)

    rows = []
    for key in (key for key in calls if key != COPY):
        site, by, name = key
        row: dict[str, Any] = {"site": site, "by": by, "pass": name}
        row |= {"rows": shape[0], "channels": shape[1], "dtype": dtype}
        row["milliseconds"] = spread([1000 * each for each in seconds[key]])
        others = {other: (site, other, name) for other in args.implementations}
        row["speed_to"] = {other: speed_ratio(seconds, key, base) for other, base in others.items() if base in seconds}
        if site != "sas":
            row["time_to_rskip_ln-1"] = spread(ratios(seconds, ("rskip_ln-1", by, name), key))
        if gpu and name in MOVED.get(site, {}):
            moved = MOVED[site][name] * given.unit / (2 * COPY_BYTES)
            row["copy_share"] = spread([moved * share for share in ratios(seconds, key, COPY)])
        if gpu and name == BOTH:
            row["peak_u"] = round(runs[site, by].peak(), 2)
            row["copy_gigabytes_per_second"] = spread([2 * COPY_BYTES / each / 1e9 for each in seconds[COPY]])
        rows.append(row)
    return rows


def time_host(args: argparse.Namespace, channels: int) -> list[dict[str, Any]]:
    """Return the host's time per forward and backward call, and its ratio to the eager λ = 1 site."""
    torch.compiler.reset()
    given = Input((HOST_ROWS, channels), DTYPES[half_precision("cuda")], "cuda")
    calls: dict[tuple[str, ...], Call] = {
        (site, by): Run(site, by, given).host_calls
        for site, by in candidates(args.implementations)
        if by != "torch.compile"  # no goal uses it, and compiling takes minutes
    }
    take_turns(calls, 1, host_clock)
    seconds = take_turns(calls, args.rounds, host_clock)
    return [
        {
            "site": site,
            "by": by,
            "channels": channels,
            "microseconds": spread([1e6 * each / HOST_CALLS for each in seconds[site, by]]),
            "time_to_eager_rskip_ln-1": spread(ratios(seconds, ("rskip_ln-1", EAGER), (site, by))),
        }
        for site, by in calls
    ]


def saved_activations(implementations: list[str], channels: int, device: str) -> list[dict[str, Any]]:
    """Return the memory that each site saves for its backward pass beyond x, in u."""
    torch.compiler.reset()
    given = Input((32, channels), DTYPES[half_precision(device)], device)
    return [
        {"site": site, "by": by, "channels": channels, "saved_u": round(Run(site, by, given).saved(), 3)}
        for site, by in candidates(implementations)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="+", type=positive, metavar="N", help="default: 4096 16384 32768 131072; CPU: 2048"
    )
    parser.add_argument("--channels", nargs="+", type=positive, metavar="C", help="default: 512 1024; CPU: 512")
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, metavar="DTYPE", help="default: bf16 fp16, before Ampere fp16; CPU: fp32"
    )
    names = f"choose from {', '.join(IMPLEMENTATIONS)}; default: all installed; {EAGER} is always measured"
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, metavar="NAME", help=names)
    measure.add_flags(parser, rounds=10)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    gpu = args.device == "cuda"
    args.rows = args.rows or ([4096, 16_384, 32_768, 131_072] if gpu else [2048])
    args.channels = args.channels or ([512, 1024] if gpu else [512])
    args.dtypes = args.dtypes or (list(dict.fromkeys([half_precision("cuda"), "fp16"])) if gpu else ["fp32"])
    for name in args.implementations or ():
        if obstacle(name, args.device):
            parser.error(f"--implementations {name}: {obstacle(name, args.device)}")
    chosen = args.implementations or [name for name in IMPLEMENTATIONS if not obstacle(name, args.device)]
    args.implementations = list(dict.fromkeys([EAGER, *chosen]))

    found: dict[str, Any] = {"machine": machine(args.device), "dropout": DROPOUT, "clock": args.clock}
    # The kernels save the same tensors in Triton's interpreter.
    saving = list(dict.fromkeys([*args.implementations, *([FUSED] if not gpu and find_spec("triton") else [])]))
    found |= {"saved": [], "host": [], "timings": []}
    found["saved"] = [row for channels in args.channels for row in saved_activations(saving, channels, args.device)]
    for row in found["saved"]:
        print(f"{row['site']:13} {row['by']:14} C = {row['channels']:4}: saves {row['saved_u']:.2f}u beyond x")
    write(args, found)
    found["host"] = [row for channels in args.channels for row in time_host(args, channels)] if gpu else []
    for row in found["host"]:
        times = f"{row['microseconds']['median']:.0f} µs of host time per call"
        print(f"{row['site']:13} {row['by']:14} C = {row['channels']:4}: {times}")
    print(f"\n{'site':13} {'by':14} {'pass':17} {'rows':>7} {'C':>5} {'':5} {'ms':>8}  {'speed to eager':20} of a copy")
    for channels, rows, dtype in product(args.channels, args.rows, args.dtypes):
        for row in time_configuration(args, (rows, channels), dtype):
            found["timings"].append(row)
            head = f"{row['site']:13} {row['by']:14} {row['pass']:17} {rows:7} {channels:5} {dtype:5}"
            share = f"{row['copy_share']['median']:.0%}" if "copy_share" in row else ""
            figures = f"{row['milliseconds']['median']:8.3f}  {shown(row['speed_to'][EAGER]):20} {share}"
            print(head, figures.rstrip(), flush=True)
        write(args, found)  # after each shape, so that an error at a later shape does not lose the results
    if args.plot:
        plot_ratios(args.plot, panels(found["timings"]), "forward + backward, speed, eager = 1")


def panels(timings: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return a panel per site with a bar per implementation: the spread of its medians over all shapes and dtypes."""
    speeds: dict[str, dict[str, list[float]]] = {}
    for row in timings:
        if row["pass"] == BOTH:
            speeds.setdefault(row["site"], {}).setdefault(row["by"], []).append(row["speed_to"][EAGER]["median"])
    return {site: {by: spread(values) for by, values in bars.items()} for site, bars in speeds.items()}


if __name__ == "__main__":
    main()
