"""Check that the tests find faults: plant one fault at a time in a copy of the project, and run the tests that must
find it.

    python tests/faults/plant_faults.py [--only NAME ...] [--jobs N] [--markdown FILE]

Run it in the environment of scripts/setup.sh --with-tests. A fault is found if `pytest -x` on its test files fails
within 2 minutes. The same files must first pass without a fault. The exit code is 1 if a fault is not found. The faults
are in tests/faults/PACKAGE.py. In every test run, tests/faults/test_faults.py checks that each fault still applies to
the source and that its test files exist.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this script can import these packages

from faults.fault import Fault
from support.shells import run_within

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120  # seconds to find a fault
PACKAGES = (
    "analysis",
    "connections",
    "data",
    "evaluation",
    "export",
    "fairseq_patches",
    "models",
    "ops",
    "report",
    "runs",
    "study",
    "tasks",
)  # packages of fairseq_resid, each with a module of faults in this folder

FAULTS: list[Fault] = [fault for package in PACKAGES for fault in importlib.import_module(f"faults.{package}").FAULTS]


def copy(folder: Path) -> Path:
    """Copy all files that git does not ignore into a folder; return it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def run(tree: Path, tests: str) -> tuple[int | None, float, str]:
    """Run test files in a copy; return the exit code (None after a timeout), seconds and pytest's last line."""
    files = [f"tests/{name}" for name in tests.split()]
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": str(Path(sys.executable).parent.parent), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    start = time.monotonic()
    limit = LIMIT if "planted" in tree.name else None
    try:
        done = run_within(limit, words, cwd=tree, env=environment, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - start, "timeout"
    output = done.stdout.splitlines()
    lines = [line for line in output if line.startswith("FAILED")] or done.stdout.strip().splitlines()[-1:]
    return done.returncode, time.monotonic() - start, lines[0] if lines else ""


def seek(fault: Fault) -> tuple[Fault, bool, float, str]:
    """Plant a fault in a new copy and run its tests."""
    with tempfile.TemporaryDirectory(suffix=".planted") as folder:
        tree = copy(Path(folder))
        fault.plant(tree)
        code, seconds, said = run(tree, fault.tests)
    # 1: a test failed. Other codes mean that pytest itself failed or collected nothing.
    return fault, code == 1, seconds, said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a fault is not found, 2 if the tests fail without a fault."""
    parser = argparse.ArgumentParser(description="Plant faults one at a time and check whether the tests find them.")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="plant only faults whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults tested in parallel (default 1)")
    parser.add_argument("--no-baseline", action="store_true", help="skip the run without a fault")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE")
    options = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if not options.only or any(text in fault.name for text in options.only)]
    if not options.no_baseline:
        names = dict.fromkeys(name for fault in faults for name in fault.tests.split())
        with tempfile.TemporaryDirectory() as folder:
            code, seconds, said = run(copy(Path(folder)), " ".join(names))
        print(f"without a fault: {said} ({seconds:.0f} s)", flush=True)
        if code:
            return 2
    rows = ["| fault | found by | seconds |", "|---|---|---:|"]
    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, found, seconds, said in pool.map(seek, faults):
            test = said.removeprefix("FAILED ").split(" - ")[0].replace("|", "\\|")
            print(f"{'found ' if found else 'MISSED'} {seconds:4.0f} s  {fault.name}: {test}", flush=True)
            rows.append(f"| {fault.name} | {f'`{test}`' if found else '**not found**'} | {seconds:.0f} |")
            missed += not found
    print(f"{len(faults) - missed} of {len(faults)} faults found")
    if options.markdown:
        options.markdown.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
