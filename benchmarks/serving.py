"""Translation speed and memory of an exported model on the CPU: fairseq, CTranslate2 and ONNX Runtime, beam 4.

    python benchmarks/serving.py [--size base | --run RUN] [--threads 1 2] [--batch-sizes 1 32] [--json FILE]

Without --run the model is untrained and its translations have a fixed length, so that all engines do the same work; the
sources are random. With --run it is the averaged model of a run, which translates the beginning of its validation set.
Every engine has a process of its own, and they take turns. Printed are the median of tokens/s over all rounds, the
speed relative to fairseq in the same round with [quartiles], and the largest memory of each process.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import measure
import torch
import translation
from measure import machine, positive, shown, speed_ratio, spread, take_turns

from fairseq_resid import records
from fairseq_resid.cli import machine as this_machine
from fairseq_resid.export.engine import ENGINES, FORMAT, RECORD, Record, Search, Text, check_installed

FAIRSEQ = "fairseq"
# Names of the variants: the engine and its --quantization.
VARIANTS: dict[str, tuple[str, str | None]] = {
    FAIRSEQ: (FAIRSEQ, None),
    "ctranslate2": ("ctranslate2", None),
    "ctranslate2 int8": ("ctranslate2", "int8"),
    "onnx": ("onnx", None),
    "onnx int8": ("onnx", "int8"),
}
MODEL = "model.pt"
BEAM, LENGTH_PENALTY = 4, 0.6


def untrained(args: argparse.Namespace) -> tuple[Any, Any, list[list[str]], Search]:
    """Return a model that never ends a sentence by itself, its task, random sources, and the search."""
    task, dataset = translation.load(args)
    torch.manual_seed(1)
    model = task.build_model(translation.configuration(args, args.structure).model).eval()
    eos = task.target_dictionary.eos()
    with torch.no_grad():
        model.decoder.output_projection.weight[eos] = 0  # far below the best of random logits
    sources = [dataset[number]["source"][:-1] for number in range(args.sentences)]
    search = Search(BEAM, LENGTH_PENALTY, 0, args.length)
    return model, task, [[task.source_dictionary[index] for index in row.tolist()] for row in sources], search


def trained(args: argparse.Namespace) -> tuple[Any, Any, list[list[str]], Search]:
    """Return the averaged model of a run, its task, the first sources of its validation set, and the search."""
    from fairseq_resid.fairseq_patches import load_checkpoint
    from fairseq_resid.runs.run import Run
    from fairseq_resid.runs.trained_on import find_data
    from fairseq_resid.tasks.loading import load

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
    """Write what the process of a variant loads."""
    engine, quantization = VARIANTS[variant]
    folder.mkdir()
    if engine == FAIRSEQ:
        torch.save((model, task.source_dictionary, task.target_dictionary), folder / MODEL)
        return
    writer = import_module(f"fairseq_resid.export.{ENGINES[engine].writer}")
    writer.write(model, task.source_dictionary, task.target_dictionary, folder, quantization)
    source, target = model.max_positions()
    longest = int(source), int(target)
    records.write(
        folder / RECORD,
        Record(FORMAT, engine, "", "", "", "", {}, quantization, longest, Text("source", "target"), Search()),
    )


def fairseq_translate(folder: Path, threads: int) -> Callable[[list[list[str]], Search], int]:
    """Return a function that translates with fairseq's own search and returns the number of tokens."""
    from fairseq.data import data_utils
    from fairseq.sequence_generator import SequenceGenerator

    import fairseq_resid.models  # noqa: F401  (registers the classes of the model)

    torch.set_num_threads(threads)
    model, source, target = torch.load(folder / MODEL, weights_only=False)
    model.eval()
    model.prepare_for_inference_(translation_settings())

    def translate(sources: list[list[str]], search: Search) -> int:
        generator = SequenceGenerator(
            [model],
            target,
            beam_size=search.beam,
            max_len_a=search.max_len_a,
            max_len_b=search.max_len_b,
            len_penalty=search.length_penalty,
        )
        tokens = 0
        order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
        for start in range(0, len(order), search.batch_size):
            rows = [
                torch.tensor([*map(source.index, sources[row]), source.eos()])
                for row in order[start : start + search.batch_size]
            ]
            batch = data_utils.collate_tokens(rows, source.pad(), source.eos(), left_pad=True)
            lengths = torch.tensor([len(row) for row in rows])
            with torch.no_grad():
                found = generator.generate([model], {"net_input": {"src_tokens": batch, "src_lengths": lengths}})
            tokens += sum(len(hypotheses[0]["tokens"]) for hypotheses in found)
        return tokens

    return translate


def translation_settings() -> Any:
    """Return fairseq's default configuration of fairseq-generate."""
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    return OmegaConf.structured(FairseqConfig())


def engine_translate(folder: Path, threads: int) -> Callable[[list[list[str]], Search], int]:
    """Return a function that translates with an engine and returns the number of tokens, </s> included."""
    from fairseq_resid.export.engine import load

    engine = load(folder, threads)

    def translate(sources: list[list[str]], search: Search) -> int:
        return sum(len(found[0].tokens) + 1 for found in engine.translate(sources, search))

    return translate


def serve(connection: Any, variant: str, folder: Path, threads: int, sources: list[list[str]]) -> None:
    """Load a model, then translate on request. Runs in a process of its own.

    Receives a Search, and sends seconds, tokens, and the largest memory of the process in bytes.
    """
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    load = fairseq_translate if variant == FAIRSEQ else engine_translate
    translate = load(folder, threads)
    connection.send(None)
    while (search := connection.recv()) is not None:
        start = time.perf_counter()
        tokens = translate(sources if search.batch_size > 1 else sources[: len(sources) // 4], search)
        seconds = time.perf_counter() - start
        unit = 1 if sys.platform == "darwin" else 1024
        connection.send((seconds, tokens, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit))


def time_variants(
    args: argparse.Namespace, folders: dict[str, Path], threads: int, sources: list[list[str]], search: Search
) -> list[dict[str, Any]]:
    """Time all variants with a number of threads and every batch size; return a row for each."""
    context = multiprocessing.get_context("spawn")
    connections, processes = {}, []
    for variant, folder in folders.items():
        connections[variant], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, variant, folder, threads, sources), daemon=True))
        processes[-1].start()
        connections[variant].recv()
    rows = []
    for batch_size in args.batch_sizes:
        tokens, memory = {}, {}
        settings = Search(search.beam, search.length_penalty, search.max_len_a, search.max_len_b, 1, batch_size)

        def turn(variant: str, settings: Search = settings, tokens: Any = tokens, memory: Any = memory) -> Any:
            def call() -> float:
                connections[variant].send(settings)
                seconds, tokens[variant], memory[variant] = connections[variant].recv()
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
    for connection, process in zip(connections.values(), processes, strict=True):
        connection.send(None)
        process.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=translation.SIZES, default="base", help="of the untrained model (default: %(default)s)")
    structures = translation.STRUCTURES
    add("--structure", choices=structures, default="post_ln", metavar="NAME", help="default: %(default)s")
    add("--run", type=Path, help="a run folder, instead of an untrained model")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME", help=", ".join(VARIANTS))
    add("--threads", nargs="+", type=positive, default=[1, 2], metavar="N", help="default: 1 2")
    add("--batch-sizes", nargs="+", type=positive, default=[1, 32], metavar="N", help="default: 1 32")
    add(
        "--sentences", type=positive, default=64, metavar="N",
        help="a quarter of them with batches of one sentence (default: %(default)s)",
    )  # fmt: skip
    add("--length", type=positive, default=25, metavar="N", help="of an untrained model's translations (default: 25)")
    measure.add_flags(parser, rounds=5)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    if args.device != "cpu" or args.clock != "wall" or args.plot:
        parser.error("measures wall-clock time on the CPU, without a plot: leave out --device, --clock and --plot")
    if args.sentences < 4:
        parser.error(f"--sentences {args.sentences}: must be at least 4")
    args.variants = list(dict.fromkeys([FAIRSEQ, *args.variants]))
    args.data, args.max_tokens, args.precision, args.residual_backend = None, None, "fp32", "auto"
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
