"""Run everything that should be measured on the first machine with a GPU, in parts of at most ten minutes.

    python benchmarks/first_gpu.py [--data DIR] [--minutes 10]

Run the command again until nothing is left: it skips the steps that have run, and with --retry only those that passed.
A failing step does not stop the others. Each step writes its log to --out while it runs, and its results when they are
known. Training and decoding are forced to use the kernels: a step fails if eager PyTorch runs in their place. --data is
a binarised text corpus for the training runs, for example data-bin/multi30k-en-de; without it, they are omitted. The
table of all steps and goals is written to first_gpu.md in --out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import goals
from measure import check_data, positive

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
PYTHON = shlex.quote(sys.executable)
KERNELS = "--residual-backend triton"
METRICS = ",".join(
    [
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "launch__registers_per_thread",
    ]
)


@dataclass(frozen=True)
class Step:
    """A command, and the maximum number of minutes that it may take.

    stops: interrupt it with SIGTERM after its next checkpoint in this folder; it passes if it then exits with code 143
    """

    name: str
    command: str
    minutes: float = 4
    stops: Path | None = None


def steps(out: Path, data: Path | None, rehearse: bool) -> Iterator[Step]:
    """Yield the steps in their order. A rehearsal runs them at tiny sizes on a CPU, in Triton's interpreter."""

    def benchmark(name: str, words: str, minutes: float = 4) -> Step:
        small = "--device cpu --rounds 1" if rehearse else ""
        json_file = shlex.quote(str(out / f"{name}.json"))
        return Step(
            name,
            f"{PYTHON} {FOLDER / words.split()[0]}.py {words.partition(' ')[2]} {small} --json {json_file}",
            minutes,
        )

    tests = "tests/ops/test_kernels.py tests/ops/test_kernel_sites.py"
    chosen = "-k second_derivatives" if rehearse else ""
    yield Step("tests", f"{PYTHON} -m pytest -q -p no:cacheprovider {tests} {chosen}", 9)
    shape = "--channels 64 --dtypes fp32" if rehearse else "--dtypes bf16 --rounds 5"
    for rows in (4,) if rehearse else (4096, 16384, 131072):
        yield benchmark(f"ops-{rows}", f"ops --rows {rows} {shape} --implementations eager triton")
    if shutil.which("ncu") and not rehearse:
        profiled = (
            f"{PYTHON} {FOLDER}/ops.py --rows 16384 --channels 512 --dtypes bf16 --implementations triton --rounds 1"
        )
        yield Step("profile", f"ncu -k regex:backward -c 24 --metrics {METRICS} {profiled}")
    structures = "--structures rskip_ln-2 sas"
    for size in ("tiny",) if rehearse else ("base", "big"):
        small = "--max-tokens 64 --steps 1" if rehearse else ""
        yield benchmark(f"training-{size}", f"training --size {size} {structures} {KERNELS} {small}", 6)
    for size in ("tiny",) if rehearse else ("base", "big"):
        small = "--max-tokens 64 --length 1" if rehearse else ""
        yield benchmark(f"decoding-{size}", f"decoding --size {size} {structures} {KERNELS} {small}")
    if not rehearse:
        words = "ops --rows 32768 --dtypes bf16 --rounds 5 --implementations eager torch.compile triton"
        yield benchmark("ops-compile", words, 9)
    if data:
        yield from training_runs(out, data, rehearse)


def training_runs(out: Path, data: Path, rehearse: bool) -> Iterator[Step]:
    """Yield short training runs in every precision, and one that is interrupted, resumed and interrupted again."""
    archs: tuple[str, ...] = ("transformer_rskip_ln", "transformer_sas", "transformer")
    precisions: tuple[str, ...] = ("bf16", "fp16", "amp")
    updates, often, small = 300, 50, ""
    if rehearse:
        archs, precisions, updates, often = ("transformer_rskip_ln",), ("fp32",), 2, 1
        small = "--max-tokens 40 --effective-batch 40 --cpu --disable-validation --encoder-layers 1 --decoder-layers 1"

    def command(arch: str, precision: str, run: Path, most: int) -> str:
        backend = "" if arch == "transformer" else KERNELS
        saving = f"--save-interval-updates {often} --keep-interval-updates 1 --max-update {most}"
        words = f"{PYTHON} -m fairseq_resid train multi30k-en-de-small {shlex.quote(str(data))} --arch {arch} {backend}"
        return f"{words} --precision {precision} {saving} {small} --run {shlex.quote(str(run))}"

    for arch, precision in product(archs, precisions):
        name = f"train-{arch}-{precision}"
        yield Step(name, command(arch, precision, out / "runs" / name, updates))
    run = out / "runs" / "stopped"
    for name in ("stop", "resume-and-stop"):
        yield Step(name, command(archs[0], precisions[0], run, 100_000), stops=run)


def checkpoints(folder: Path) -> float:
    """Return the time at which the newest checkpoint in a folder was written; 0 if there is none."""
    return max((path.stat().st_mtime for path in folder.glob("checkpoint*.pt")), default=0.0)


def run(step: Step, out: Path, minutes: float) -> dict[str, Any]:
    """Run a step for at most this number of minutes; return its outcome."""
    start, begun = time.monotonic(), time.time()
    log = out / f"{step.name}.log"
    expected = 128 + signal.SIGTERM if step.stops else 0
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            shlex.split(step.command), cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        code = None
        is_stopped = False
        while code is None and time.monotonic() - start < 60 * minutes:
            if step.stops and not is_stopped and checkpoints(step.stops) > begun:
                process.terminate()
                is_stopped = True
            try:
                code = process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outcome = "pass" if code == expected else f"out of time ({minutes:g} min)" if code is None else f"failed ({code})"
    return {"outcome": outcome, "seconds": round(time.monotonic() - start), "command": step.command}


def report(out: Path, chosen: list[Step], done: dict[str, Any]) -> None:
    """Write the outcomes of all steps and, if anything was measured, whether the goals are met."""
    rows = [
        f"| {step.name} | {found.get('outcome', 'not run')} | {found.get('seconds', '')} |"
        for step in chosen
        for found in [done.get(step.name, {})]
    ]
    lines = ["| step | outcome | seconds |", "|---|---|---:|", *rows, ""]
    if results := goals.find(out):
        lines.append(goals.table([goals.judge(goal, results) for goal in goals.GOALS], results))
    (out / "first_gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="a binarised text corpus, for the training runs")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=FOLDER / "results" / "gpu",
        help="folder for logs and results (default: benchmarks/results/gpu)",
    )
    parser.add_argument(
        "--minutes", type=positive, default=10, metavar="N", help="stop after N minutes (default: %(default)s)"
    )
    parser.add_argument("--retry", action="store_true", help="run failed steps again")
    parser.add_argument(
        "--rehearse", action="store_true", help="use tiny sizes on a CPU to test the script; also choose another --out"
    )
    args = parser.parse_args()
    check_data(parser, args)
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    record = out / "steps.json"
    done: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    chosen = list(steps(out, args.data.absolute() if args.data else None, args.rehearse))
    end = time.monotonic() + 60 * args.minutes - 15  # 15 seconds remain for writing the table
    has_run = False
    for step in chosen:
        outcome = done.get(step.name, {}).get("outcome")
        if outcome == "pass" or (outcome and not args.retry):
            continue
        left = (end - time.monotonic()) / 60
        if has_run and left < step.minutes:
            print(f"{step.name}: not enough time left; run the command again for the rest")
            break
        has_run = True
        print(f"== {step.name}: {step.command}", flush=True)
        (out / f"{step.name}.json").unlink(missing_ok=True)
        limit = step.minutes * (5 if args.rehearse else 1)  # the CPU of a rehearsal may be busy
        done[step.name] = run(step, out, min(limit, left))
        record.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        report(out, chosen, done)
        print(f"{done[step.name]['outcome']}, {done[step.name]['seconds']} s", flush=True)
    else:
        print("nothing is left")
    report(out, chosen, done)
    print((out / "first_gpu.md").read_text(encoding="utf-8"))
    sys.exit(any(found["outcome"] != "pass" for found in done.values()))


if __name__ == "__main__":
    main()
