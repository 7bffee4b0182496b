"""Run all benchmarks of the residual structures, and print a table of goals with pass or fail.

    python benchmarks/goals.py [--data DIR] [--out FOLDER]
    python benchmarks/goals.py --only ops training-base         # run only some benchmarks; other results are kept
    python benchmarks/goals.py --judge FOLDER                   # only print the table of existing results

Runs ops.py, training.py and decoding.py in sequence, at sizes suitable for the machine, with random sentences and with
the corpus of --data. Results and plots are written to --out (default: benchmarks/results/gpu or cpu). Then all results
in that folder are judged. The table is printed as Markdown, and the goals in it are written to goals.json. A goal is
judged by its worst median over shapes and dtypes, or over sizes and data; [a, b] are the quartiles over the rounds. A
goal without a measurement never passes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from measure import CLOCKS, check_data, hardware, shown, spread

FOLDER = Path(__file__).resolve().parent
FUSED = "triton"
Spread = dict[str, float]
Results = dict[str, dict[str, Any]]  # contents of the benchmarks' JSON files, by file name

# The benchmarks for each kind of machine: file name and command.
RUNS = {
    "gpu": {
        "ops": "ops.py --rounds 5",
        # Force the kernels: otherwise, the speed of a fallback to eager would be reported as theirs.
        "training-base": "training.py --size base --residual-backend triton",
        "training-big": "training.py --size big --residual-backend triton",
        "decoding-base": "decoding.py --size base --residual-backend triton",
        "decoding-big": "decoding.py --size big --residual-backend triton",
    },
    "cpu": {
        "ops": "ops.py",
        "training-small": "training.py --size small",
        "training-base": "training.py --size base --max-tokens 1024 --rounds 6",
        "decoding-small": "decoding.py --size small --max-tokens 1024 --rounds 30",
        "decoding-base": "decoding.py --size base --max-tokens 512 --rounds 8",
    },
    "quick": {
        "ops": "ops.py --rows 4 --implementations eager --rounds 1",
        "training-tiny": "training.py --size tiny --max-tokens 256 --steps 1 --rounds 1",
        "decoding-tiny": "decoding.py --size tiny --max-tokens 256 --length 2 --rounds 1",
    },
}


@dataclass(frozen=True)
class Goal:
    """A measurement and its limit: it must be at least `limit`, or at most `limit` if `most` is set."""

    what: str
    limit: float
    figures: Callable[[Results], dict[str, Spread]]  # by the setting in which they were measured
    on: str = ""  # gpu or cpu, if the goal applies only to that kind of machine
    most: bool = False

    @property
    def target(self) -> str:
        return f"{'<=' if self.most else '>='} {self.limit:g}"


def judge(goal: Goal, results: Results) -> dict[str, Any]:
    """Return a row of the table: the goal, its worst result with the setting, and the verdict."""
    ran_on = kind(results)
    figures = goal.figures(results) if goal.on in ("", ran_on) else {}
    row = {"what": goal.what, "goal": goal.target, "figures": figures}
    if not figures:
        reason = ""
        if goal.on not in ("", ran_on):
            reason = ": no GPU" if ran_on == "cpu" else ": ran on a GPU"
        return {**row, "measured": "", "verdict": f"not measured{reason}"}
    where = (max if goal.most else min)(figures, key=lambda name: figures[name]["median"])
    worst = figures[where]["median"]
    met = worst <= goal.limit if goal.most else worst >= goal.limit
    return {**row, "measured": f"{shown(figures[where])} ({where})", "verdict": "pass" if met else "fail"}


def kind(results: Results) -> str:
    """Return the kind of machine on which results were measured: gpu or cpu."""
    return "gpu" if any(found["machine"]["gpu"] for found in results.values()) else "cpu"


# --- results for a goal --------------------------------------------------------------------------------------------


def op_rows(results: Results, kind: str) -> Iterator[Any]:
    """Yield the rows of one kind ("saved", "host" or "timings") from every run of ops.py."""
    for result in results.values():
        yield from result.get(kind, [])


def timings(results: Results, sites: str, passed: str, channels: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (setting, row) for the fused op; `sites` is a prefix of the site's name."""
    for row in op_rows(results, "timings"):
        fits = row["site"].startswith(sites) and row["by"] == FUSED and row["pass"] == passed
        if fits and channels in (None, row["channels"]):
            yield f"{row['site']}, {row['rows']} x {row['channels']}, {row['dtype']}", row


def op_speed(sites: str, base: str) -> Callable[[Results], dict[str, Spread]]:
    def figures(results: Results) -> dict[str, Spread]:
        rows = timings(results, sites, "forward+backward")
        return {where: row["speed_to"][base] for where, row in rows if base in row["speed_to"]}

    return figures


def copy_share(passed: str, channels: int) -> Callable[[Results], dict[str, Spread]]:
    return lambda results: {
        where: row["copy_share"] for where, row in timings(results, "rskip_ln", passed, channels) if "copy_share" in row
    }


def growth(results: Results) -> dict[str, Spread]:
    return {where: row["time_to_rskip_ln-1"] for where, row in timings(results, "rskip_ln-3", "forward+backward")}


def host(results: Results) -> dict[str, Spread]:
    return {
        f"{row['site']}, C = {row['channels']}": row["time_to_eager_rskip_ln-1"]
        for row in op_rows(results, "host")
        if row["by"] == FUSED and row["site"].startswith("rskip_ln")
    }


def saved(sites: str) -> Callable[[Results], dict[str, Spread]]:
    return lambda results: {
        f"{row['site']}, C = {row['channels']}": spread([row["saved_u"]])
        for row in op_rows(results, "saved")
        if row["by"] == FUSED and row["site"].startswith(sites)
    }


def model_speed(benchmark: str, structure: str, size: str = "") -> Callable[[Results], dict[str, Spread]]:
    """Return a function that finds the speed of a structure, relative to stock fairseq, in all runs or at one size."""

    def figures(results: Results) -> dict[str, Spread]:
        found = {}
        for name, result in results.items():
            if name.startswith(benchmark) and size in ("", result["size"]) and structure in result["structures"]:
                where = f"{result['size']}, {result['precision']}, {result['data']}, {result['clock']}"
                found[where] = result["structures"][structure]["to_stock"]
        return found

    return figures


GOALS = [
    Goal("rskip_ln λ=2, fused / eager, forward + backward", 2.5, op_speed("rskip_ln-2", "eager"), "gpu"),
    Goal("rskip_ln λ=3, fused / eager, forward + backward", 3.5, op_speed("rskip_ln-3", "eager"), "gpu"),
    Goal("rskip_ln, fused / torch.compile", 1.0, op_speed("rskip_ln", "torch.compile"), "gpu"),
    Goal("sas, fused / torch.compile", 1.0, op_speed("sas", "torch.compile"), "gpu"),
    Goal("rskip_ln forward, share of copy bandwidth, C = 512", 0.65, copy_share("forward", 512), "gpu"),
    Goal("rskip_ln forward, share of copy bandwidth, C = 1024", 0.75, copy_share("forward", 1024), "gpu"),
    Goal("rskip_ln backward, share of copy bandwidth, C = 512", 0.5, copy_share("backward", 512), "gpu"),
    Goal("rskip_ln backward, share of copy bandwidth, C = 1024", 0.6, copy_share("backward", 1024), "gpu"),
    Goal("rskip_ln, fused, time of λ=3 / λ=1", 1.15, growth, "gpu", most=True),
    Goal("rskip_ln, host time of a call, fused / eager λ=1", 1.0, host, "gpu", most=True),
    Goal("rskip_ln, saved beyond x, u", 1.05, saved("rskip_ln"), most=True),
    Goal("sas, saved beyond x, u", 3.1, saved("sas"), most=True),
    Goal("training on a GPU, rskip_ln / stock", 1.0, model_speed("training", "rskip_ln-2"), "gpu"),
    Goal("training on a GPU, sas / stock, Base", 0.75, model_speed("training", "sas", "base"), "gpu"),
    Goal("training on a GPU, sas / stock, Big", 0.7, model_speed("training", "sas", "big"), "gpu"),
    Goal("decoding on a GPU, beam 4, rskip_ln / stock", 0.98, model_speed("decoding", "rskip_ln-2"), "gpu"),
    Goal("decoding on a GPU, beam 4, sas / stock", 0.75, model_speed("decoding", "sas"), "gpu"),
    Goal("training on a CPU, rskip_ln / stock", 0.9, model_speed("training", "rskip_ln-2"), "cpu"),
    Goal("training on a CPU, sas / stock", 0.6, model_speed("training", "sas"), "cpu"),
    Goal("decoding on a CPU, beam 4, rskip_ln / stock", 0.98, model_speed("decoding", "rskip_ln-2"), "cpu"),
    Goal("decoding on a CPU, beam 4, sas / stock", 0.75, model_speed("decoding", "sas"), "cpu"),
]


def settings(results: Results) -> list[str]:
    """Return a Markdown table with the speed of every structure in every setting."""
    models = {name: result for name, result in results.items() if "structures" in result}
    if not models:
        return []
    structures = list(dict.fromkeys(name for result in models.values() for name in result["structures"]))
    lines = ["", f"| to stock | {' | '.join(structures)} |", "|---|" + "---:|" * len(structures)]
    for name, result in models.items():
        figures = [result["structures"].get(structure) for structure in structures]
        cells = [f"{figure['to_stock']['median']:.3f}" if figure else "" for figure in figures]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def table(rows: list[dict[str, Any]], results: Results) -> str:
    """Return the goals, the speed of all models, the commands and the machines as Markdown."""
    head = ["| what | goal | measured | |", "|---|---|---|---|"]
    body = [f"| {row['what']} | {row['goal']} | {row['measured']} | {row['verdict']} |" for row in rows]
    commands = [
        f"    {found['command'].split(' --json')[0]}  # load average at its start {found['machine']['load_average']}"
        for found in results.values()
    ]
    machines = dict.fromkeys(hardware(found["machine"]) for found in results.values())
    return "\n".join([*head, *body, *settings(results), "", *commands, "", *machines])


def find(folder: Path) -> Results:
    """Return the benchmark results in a folder."""
    paths = sorted(path for path in folder.glob("*.json") if path.stem.split("-")[0] in ("ops", "training", "decoding"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def read(folder: Path) -> Results:
    """Return the benchmark results in a folder.

    Raises: SystemExit if there are none
    """
    results = find(folder)
    if not results:
        raise SystemExit(f"goals.py: error: --judge {folder}: contains no ops.json, training-*.json or decoding-*.json")
    return results


def measure(args: argparse.Namespace, machine: str, folder: Path) -> list[str]:
    """Run the chosen benchmarks; each writes its results and, if matplotlib is installed, its plot to the folder.

    Return the commands that failed. They do not stop the others, and their results from earlier runs are removed.
    """
    commands = dict(RUNS["quick" if args.quick else machine])
    if args.data:
        words = f" --data {shlex.quote(str(args.data))}"
        translations = {name: command for name, command in commands.items() if name != "ops"}
        commands |= {f"{name}-{args.data.name}": command + words for name, command in translations.items()}
    if unknown := set(args.only or ()) - commands.keys():
        raise SystemExit(f"goals.py: error: --only {min(unknown)}: choose from {', '.join(commands)}")
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, command in commands.items():
        if args.only and name not in args.only:
            continue
        script, *flags = shlex.split(command)
        print(f"== {command}", flush=True)
        written = ["--clock", args.clock, "--json", f"{folder / name}.json"]
        if find_spec("matplotlib"):
            written += ["--plot", f"{folder / name}.png"]
        (folder / f"{name}.json").unlink(missing_ok=True)
        if subprocess.run([sys.executable, str(FOLDER / script), *flags, *written]).returncode:
            failed.append(command)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="a binarised data folder, for training and decoding")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for results (default: benchmarks/results/gpu or cpu)"
    )
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="measure nothing; judge the results in FOLDER")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these benchmarks: ops, training-base, ...")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="use processor time on a busy CPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the benchmarks themselves")
    args = parser.parse_args()
    check_data(parser, args)
    if args.quick and not args.out:
        parser.error("--quick: requires --out FOLDER, so that its results are not mixed with real ones")
    machine = "gpu" if torch.cuda.is_available() else "cpu"
    # A relative path, because the results contain the command.
    folder = args.judge or args.out or Path(os.path.relpath(FOLDER / "results" / machine))
    failed = [] if args.judge else measure(args, machine, folder)
    results = find(folder) if failed else read(folder)
    rows = [judge(goal, results) for goal in GOALS]
    (folder / "goals.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table(rows, results)}")
    if failed:
        raise SystemExit(f"goals.py: error: failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
