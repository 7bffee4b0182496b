"""Measure the throughput of every step of data preparation, compared with common tools for the same step.

    python benchmarks/data_prep.py --text PREFIX --source en --target vi [--rounds 3] [--json FILE]
    python benchmarks/data_prep.py --text PREFIX --source en --target de --memory-lines 5000000 [--json FILE]

PREFIX.SRC and PREFIX.TGT must be real text. Our step and the other tool alternate (A B A B) on the same text and cores,
each in a separate process. The script prints the fastest round of each, and their ratio. A whole preparation starts
Python, torch and fairseq only once, so our startup time is measured separately and subtracted from each step.

`--memory-lines N` repeats the text up to N lines per side and prints the peak memory of the process tree at N / 100 and
at N lines. The other tools are tar, sacremoses and subword-nmt (pip install subword-nmt). Moses' Perl scripts are not
included, because no Debian package contains them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path

from fairseq_resid.cli import machine

ROOT = Path(__file__).resolve().parent.parent
# Estimated size of WMT'14 EN-FR before cleaning, which leaves 36M pairs; from its manifest.
BYTES_36M = 13_500_000_000

TOKENISE = """
import sys
from pathlib import Path
from fairseq_resid.data.text.tokenise import tokenise
from fairseq_resid.data.text.forms import TextForm
source, target, cores, prefix, out = sys.argv[1:]
forms = TextForm(source, "moses", True), TextForm(target, "moses", True)
both = lambda stem: (Path(f"{stem}.{source}"), Path(f"{stem}.{target}"))
tokenise("tokenise", [both(prefix)], both(out), forms, True, int(cores))
"""
ENCODE = """
import sys
from pathlib import Path
from fairseq_resid.data.text.clean import Limits
from fairseq_resid.data.text.subwords import encode
source, target, cores, prefix, out, model = sys.argv[1:]
both = lambda stem: (Path(f"{stem}.{source}"), Path(f"{stem}.{target}"))
encode("encode", both(prefix), both(out), "sentencepiece", Path(model), Limits(250, 1.5), int(cores))
"""
EXTRACT = """
import sys
from pathlib import Path
from fairseq_resid.data.extract import extract
source, target, archive, out = sys.argv[1:]
extract(Path(archive), {f"text.{side}": Path(f"{out}.{side}") for side in (source, target)})
"""
LEARN = """
import sys
from pathlib import Path
from fairseq_resid.data.text.subwords import learn
source, target, size, prefix, model = sys.argv[1:]
files = (Path(f"{prefix}.{source}"), Path(f"{prefix}.{target}"))
learn("sentencepiece", files, sum(1 for _ in open(files[0], "rb")), int(size), Path(model))
"""


def run(command: str, folder: Path) -> tuple[float, int]:
    """Run a shell command; return its wall-clock seconds, and the peak memory of its process tree in bytes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        peak = [0]
        watch = threading.Thread(target=watch_memory, args=(process, peak))
        watch.start()
        errors = process.communicate()[1]
        seconds = time.perf_counter() - start
        watch.join()
    if process.returncode:
        raise SystemExit(f"{command}\nfailed with exit code {process.returncode}:\n{errors[-2000:]}")
    return seconds, peak[0]


def watch_memory(process: subprocess.Popen[str], peak: list[int]) -> None:
    """Record the peak of the summed proportional set sizes of a process tree, sampled five times a second."""
    while process.poll() is None:
        parents = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(status.parent.name)] = int(fields[1])
        tree, total = {process.pid}, 0
        while more := {child for child, parent in parents.items() if parent in tree} - tree:
            tree |= more
        for pid in tree:
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        peak[0] = max(peak[0], total)
        time.sleep(0.2)


def steps(args: argparse.Namespace, text: Path) -> dict[str, dict[str, str]]:
    """Return the commands for each step: ours, and another tool's if there is one."""
    python, source, target, cores = shlex.quote(sys.executable), args.source, args.target, args.workers
    tools = Path(sys.executable).parent
    subword, moses = tools / "subword-nmt", tools / "sacremoses"
    prefix = shlex.quote(str(text))

    def ours(code: str, *words: object) -> str:
        return f"{python} -c {shlex.quote(code)} {source} {target} {' '.join(map(str, words))}"

    chains = [
        f"{moses} -q -l {side} -j {cores} normalize -q -d -c tokenize < {prefix}.{side} > theirs.tok.{side}"
        for side in (source, target)
    ]
    both = f"ours.tok.{source} ours.tok.{target}"
    found = {
        "extract": {"ours": ours(EXTRACT, "text.tgz", "ours.text"), "tar": "tar -xzf text.tgz"},
        "normalise + tokenise (ours also cleans)": {
            "ours": ours(TOKENISE, cores, prefix, "ours.tok"),
            "sacremoses": " && ".join(chains),
        },
        f"learn a joint BPE of {args.vocab_size}": {
            "ours": ours(LEARN, args.vocab_size, "ours.tok", "spm.model"),
            "subword-nmt": f"cat {both} | {subword} learn-bpe -s {args.vocab_size} > codes",
        },
        "encode (ours also cleans)": {
            "ours": ours(ENCODE, cores, "ours.tok", "ours.bpe", "spm.model"),
            "subword-nmt": " && ".join(
                f"{subword} apply-bpe -c codes --num-workers {cores} -i ours.tok.{side} -o theirs.bpe.{side}"
                for side in (source, target)
            ),
        },
        "fairseq-preprocess (the same in both)": {
            "ours": f"rm -rf data && {tools}/fairseq-preprocess --source-lang {source} --target-lang {target} "
            f"--joined-dictionary --trainpref ours.bpe --destdir data --workers {cores}",
        },
    }
    found = {step: commands for step, commands in found.items() if any(word in step for word in args.only)}
    for commands in found.values():
        for name, tool in (("sacremoses", moses), ("subword-nmt", subword)):
            if name in commands and not tool.is_file():
                print(f"{name}: not installed, skipped")
                del commands[name]
    return found


def pack(args: argparse.Namespace, text: Path, folder: Path) -> None:
    """Write FOLDER/text.tgz, the archive to extract."""
    with tarfile.open(folder / "text.tgz", "w:gz", compresslevel=6) as file:
        for side in (args.source, args.target):
            file.add(f"{text}.{side}", f"text.{side}")


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def speed(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Time every step, alternating between our command and the other tool's."""
    pairs = count_lines(Path(f"{args.text}.{args.source}"))
    size = sum(Path(f"{args.text}.{side}").stat().st_size for side in (args.source, args.target))
    print(f"{pairs:,} pairs, {size / 1e6:.1f} MB, {args.workers} workers, {args.rounds} rounds\n")
    print(f"{'step':42} {'tool':12} {'pairs/s':>9} {'spread':>7} {'MB/s':>6} {'ratio':>6} {'EN-FR hours':>12}")
    results: dict[str, object] = {}
    pack(args, args.text, folder)
    start = f"{shlex.quote(sys.executable)} -c 'import fairseq_resid.data.text.prepare'"
    startup = min(run(start, folder)[0] for _ in range(args.rounds + 1))
    for step, commands in steps(args, args.text).items():
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, command in commands.items():
                is_ours = name == "ours" and " -c " in command
                elapsed = run(command, folder)[0] - (startup if is_ours else 0)
                # On a tiny text, the startup time may exceed that of the step.
                seconds[name].append(max(elapsed, 0.001))
        for name, found in seconds.items():
            best = min(found)
            row = {
                "pairs_per_second": round(pairs / best),
                "spread": round(max(found) / best - 1, 3),
                "megabytes_per_second": round(size / best / 1e6, 2),
                "speed_of_ours": round(best / min(seconds["ours"]), 2),
                "hours_for_en_fr": round(BYTES_36M / (size / best) / 3600, 1),
            }
            results[f"{step}: {name}"] = row
            figures = f"{row['pairs_per_second']:9,} {row['spread']:7.0%} {row['megabytes_per_second']:6}"
            print(f"{step:42} {name:12} {figures} {row['speed_of_ours']:6} {row['hours_for_en_fr']:12}", flush=True)
    print(f"\nour startup time, subtracted: {startup:.1f} s. ratio: seconds of this tool / our seconds.")
    print("EN-FR hours: extrapolated by bytes, although its subwords are learned from only 1,000,000 pairs.")
    return {"pairs": pairs, "bytes": size, "startup_seconds": round(startup, 1), "steps": results}


def memory(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure the peak memory of every step at a hundredth of the lines and at all of them."""
    results: dict[str, object] = {}
    peaks: dict[str, list[int]] = {}
    counts = [args.memory_lines // 100, args.memory_lines]
    for count in counts:
        for side in (args.source, args.target):
            with Path(f"{args.text}.{side}").open("rb") as file, (folder / f"long.{side}").open("wb") as output:
                output.writelines(islice(cycle(file.readlines()), count))
        pack(args, folder / "long", folder)
        for step, commands in steps(args, folder / "long").items():
            seconds, peak = run(commands["ours"], folder)
            peaks.setdefault(step, []).append(peak)
            print(f"{count:12,} lines per side  {step:42} {seconds:8.0f} s  peak {peak / 1e6:7,.0f} MB", flush=True)
    for step, found in peaks.items():
        results[step] = {f"{count} lines": round(peak / 1e6) for count, peak in zip(counts, found, strict=True)}
    return {"peak_megabytes": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path, metavar="PREFIX")
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="only steps whose name contains one of these words"
    )
    parser.add_argument("--memory-lines", type=int, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.text = args.text.absolute()
    for side in (args.source, args.target):
        if not Path(f"{args.text}.{side}").is_file():
            parser.error(f"--text {args.text}: {args.text}.{side} does not exist")
    folder = Path(tempfile.mkdtemp(prefix="data-prep-benchmark."))
    try:
        found = memory(args, folder) if args.memory_lines else speed(args, folder)
    finally:
        shutil.rmtree(folder)
    if args.json:
        facts = {"cores": machine.cores(), "processor": machine.processor(), "python": machine.python()}
        args.json.write_text(json.dumps({"machine": facts, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
