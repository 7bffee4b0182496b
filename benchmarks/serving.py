"""Measure translation speed and memory of an exported model on the CPU: fairseq, CTranslate2 and ONNX Runtime, beam 4.

    python benchmarks/serving.py [--size base | --run RUN] [--threads 1 2] [--batch-sizes 1 32] [--json FILE]

Without --run, the model is untrained, the sources are random, and translations have a fixed length, so that all engines
do the same work. With --run, a run's averaged model (or its last checkpoint, if there is no average) translates the
beginning of its validation set. Every engine has its own process, and the engines take turns. The script prints the
median tokens/s over all rounds; the median speed relative to fairseq in the same round, with the quartiles in brackets;
and the peak memory of each process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import measure
import torch
import translation
from measure import machine, positive, shown, speed_ratio, spread, take_turns
from serving_process import FAIRSEQ, MODEL

from fairseq_resid import records
from fairseq_resid.cli import machine as this_machine
from fairseq_resid.export.engine import FORMAT, RECORD, Record, Search, Text, check_installed

# Names of the variants: the engine and its --quantization.
VARIANTS: dict[str, tuple[str, str | None]] = {
    FAIRSEQ: (FAIRSEQ, None),
    "ctranslate2": ("ctranslate2", None),
    "ctranslate2 int8": ("ctranslate2", "int8"),
    "onnx": ("onnx", None),
    "onnx int8": ("onnx", "int8"),
}
PROCESS = Path(__file__).with_name("serving_process.py")
BEAM, LENGTH_PENALTY = 4, 0.6


def untrained(args: argparse.Namespace) -> tuple[Any, Any, list[list[str]], Search]:
    """Return a model that never ends a sentence by itself, its task, random sources, and the search."""
    task, dataset = translation.load(args)
    torch.manual_seed(1)
    model = task.build_model(translation.configuration(args, args.structure).model).eval()
    eos = task.target_dictionary.eos()
    with torch.no_grad():
        model.decoder.output_projection.weight[eos] = 0  # far below the largest random logit
    sources = [dataset[number]["source"][:-1] for number in range(args.sentences)]
    search = Search(BEAM, LENGTH_PENALTY, 0, args.length)
    return model, task, [[task.source_dictionary[index] for index in row.tolist()] for row in sources], search


def trained(args: argparse.Namespace) -> tuple[Any, Any, list[list[str]], Search]:
    """Return the averaged or else the last model of a run, its task, the first validation sources, and the search."""
    from fairseq_resid.fairseq_patches.loading import load_checkpoint
    from fairseq_resid.runs.run import Run
    from fairseq_resid.runs.trained_on import find_data
    from fairseq_resid.scoring.loading import load

    run = Run(args.run)
    checkpoint = run.checkpoint(None)
    data = find_data(run, load_checkpoint(checkpoint)).resolve()
    loaded = load(run, checkpoint, data, cpu=True)
    loaded.task.load_dataset("valid")
    dataset, words = loaded.task.dataset("valid"), loaded.task.source_dictionary
    sources = [dataset[number]["source"][:-1].tolist() for number in range(min(args.sentences, len(dataset)))]
    search = Search(BEAM, LENGTH_PENALTY, 1, 50)
    return loaded.model, loaded.task, [[words[index] for index in row] for row in sources], search


def export(model: Any, task: Any, variant: str, folder: Path) -> None:
    """Write the folder that the process of a variant loads."""
    engine, quantization = VARIANTS[variant]
    folder.mkdir()
    if engine == FAIRSEQ:
        torch.save((model, task.source_dictionary, task.target_dictionary), folder / MODEL)
        return
    writer = import_module(f"fairseq_resid.export.{engine}")
    source, target = model.max_positions()
    longest, text = (int(source), int(target)), Text("source", "target")
    record = Record(FORMAT, engine, "", "", "", "", {}, quantization, longest, text, Search())
    writer.write(model, task.source_dictionary, task.target_dictionary, folder, record)
    records.write(folder / RECORD, record)


def time_variants(
    args: argparse.Namespace, folders: dict[str, Path], threads: int, sources: list[list[str]], search: Search
) -> list[dict[str, Any]]:
    """Time all variants with `threads` threads and every batch size; return a row for each."""
    processes = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(sources, file)
        file.flush()
        for variant, folder in folders.items():
            words = [sys.executable, PROCESS, variant, folder, threads, file.name]
            processes[variant] = subprocess.Popen(
                [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            answer(processes[variant])
    rows = []
    for batch_size in args.batch_sizes:
        tokens: dict[str, int] = {}
        memory: dict[str, int] = {}
        settings = Search(search.beam, search.length_penalty, search.max_len_a, search.max_len_b, 1, batch_size)

        def turn(variant: str, settings: Search = settings, tokens: Any = tokens, memory: Any = memory) -> Any:
            def call() -> float:
                process = processes[variant]
                assert process.stdin is not None
                process.stdin.write(json.dumps(dataclasses.asdict(settings)) + "\n")
                process.stdin.flush()
                seconds, tokens[variant], memory[variant] = json.loads(answer(process))
                return float(seconds)

            return call

        calls = {variant: turn(variant) for variant in folders}
        take_turns(calls, 1, lambda call: call())  # type: ignore[arg-type, return-value]
        seconds = take_turns(calls, args.rounds, lambda call: call())  # type: ignore[arg-type, return-value]
        rows += [
            {
                "variant": variant,
                "threads": threads,
                "batch_size": batch_size,
                "tokens": tokens[variant],
                "tokens_per_second": spread([tokens[variant] / each for each in seconds[variant]]),
                "to_fairseq": speed_ratio(seconds, variant, FAIRSEQ),
                "memory": memory[variant],
            }
            for variant in folders
        ]
    for process in processes.values():
        process.communicate()
    return rows


def answer(process: Any) -> str:
    """Return the next line that a process writes. Raises: RuntimeError if the process has ended."""
    line: str = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{' '.join(process.args)}: ended with code {process.wait()}")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=translation.SIZES, default="base", help="size of the untrained model (default: %(default)s)")
    structures = translation.STRUCTURES
    add("--structure", choices=structures, default="post_ln", metavar="NAME", help="default: %(default)s")
    add("--run", type=Path, help="a run folder, to measure its model instead of an untrained one")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME", help=", ".join(VARIANTS))
    add("--threads", nargs="+", type=positive, default=[1, 2], metavar="N", help="default: 1 2")
    add("--batch-sizes", nargs="+", type=positive, default=[1, 32], metavar="N", help="default: 1 32")
    add(
        "--sentences", type=positive, default=64, metavar="N",
        help="number of sentences; batches of one sentence use a quarter of them (default: %(default)s)",
    )  # fmt: skip
    add(
        "--length",
        type=positive,
        default=25,
        metavar="N",
        help="length of an untrained model's translations (default: 25)",
    )
    measure.add_flags(parser, rounds=5)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    if args.device != "cpu" or args.clock != "wall" or args.plot:
        parser.error("measures wall-clock time on the CPU, without a plot: omit --device, --clock and --plot")
    if args.sentences < 4:
        parser.error(f"--sentences {args.sentences}: must be at least 4")
    args.variants = list(dict.fromkeys([FAIRSEQ, *args.variants]))
    args.data, args.max_tokens, args.precision = None, None, "fp32"
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        for engine in {VARIANTS[variant][0] for variant in args.variants} - {FAIRSEQ}:
            check_installed(engine)
        model, task, sources, search = trained(args) if args.run else untrained(args)
        with tempfile.TemporaryDirectory() as scratch:
            folders = {variant: Path(scratch) / str(number) for number, variant in enumerate(args.variants)}
            for variant, folder in folders.items():
                export(model, task, variant, folder)
            sizes = {
                variant: sum(file.stat().st_size for file in folder.iterdir()) for variant, folder in folders.items()
            }
            del model
            rows = []
            for threads in args.threads:
                rows += time_variants(args, folders, threads, sources, search)
    except ValueError as error:
        parser.error(str(error))
    packages = this_machine.versions(("ctranslate2", "onnxruntime"))
    name = args.run.name if args.run else f"{args.size}, {args.structure}, untrained"
    found = {"machine": {**machine("cpu"), **packages}, "model": name, "files": sizes, "rows": rows}
    print(f"{name}; {len(sources)} sentences, beam {BEAM}, {args.rounds} rounds", end="\n\n")
    print(f"{'engine':18} {'threads':>7} {'batch':>5} {'tokens/s':>9}  {'to fairseq':22} {'memory':>9} {'files':>9}")
    for row in rows:
        print(
            f"{row['variant']:18} {row['threads']:7} {row['batch_size']:5} {row['tokens_per_second']['median']:9,.0f}  "
            f"{shown(row['to_fairseq']):22} {row['memory'] / 2**20:5,.0f} MiB {sizes[row['variant']] / 2**20:5,.0f} MiB"
        )
    measure.write(args, found)


if __name__ == "__main__":
    main()
