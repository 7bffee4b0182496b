"""Models and batches for the training, decoding and serving benchmarks, built by fairseq from its command line."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import measure
import torch
from fairseq import options
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from measure import check_data, half_precision, plot_ratios, positive
from torch import nn

from fairseq_resid import connections, tasks
from fairseq_resid.ops import BACKENDS
from fairseq_resid.runs.training_command import CHUNKED

tasks.register()  # the models and the criteria

STOCK = "transformer"

# Structures that can be compared, and their flags: every --residual name, rskip_ln-3 for λ = 3, and variants of sas.
STRUCTURES = {
    STOCK: "--arch transformer",
    **{name: f"--arch transformer_resid --residual {name}" for name in connections.names()},
    **{f"rskip_ln-{number}": f"--arch transformer_rskip_ln --skip-lambda {number}" for number in (1, 2, 3)},
    **{f"sas-{gate}": f"--arch transformer_sas --sas-gate {gate}" for gate in ("single", "transform")},
    "sas-free": "--arch transformer_sas --sas-gamma free",
    "mhc-permutation": "--arch transformer_resid --residual mhc --hyper-mixing permutation",
}
# Default of --structures.
COMPARED = [STOCK, "post_ln", "rskip_ln-1", "rskip_ln-2", "rskip_ln-3", "sas"]

# Layers of each stack, C, FFN, heads, dropout, vocabulary of random data. base and big: Vaswani 2017, table 3; small,
# multi30k-small and multi30k-published: the models of multi30k-en-de.txt, multi30k-en-de-small.txt and
# multi30k-en-de-published.txt in scripts/recipes; tiny: for testing the benchmarks.
SIZES = {
    "tiny": (1, 64, 64, 2, 0.1, 200),
    "small": (3, 256, 1024, 4, 0.2, 8_000),
    "multi30k-small": (6, 64, 256, 4, 0.1, 4_000),
    "multi30k-published": (4, 128, 256, 4, 0.3, 9_712),
    "base": (6, 512, 2048, 8, 0.1, 32_768),
    "big": (6, 1024, 4096, 16, 0.3, 32_768),
}
# Criteria that can be compared: the same loss and the same gradients.
CRITERIA = {"fairseq": "label_smoothed_cross_entropy", "chunked": CHUNKED}
SHORTEST, LONGEST, PAIRS = 8, 48, 8_000
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose models and data."""
    names = ", ".join(STRUCTURES)
    parser.add_argument("--size", choices=SIZES, help="default: small on a CPU, base on a GPU")
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="default: fp32 on a CPU, bf16 on a GPU (before Ampere fp16)"
    )
    parser.add_argument(
        "--structures", nargs="+", choices=STRUCTURES, default=COMPARED, metavar="NAME", help=f"choose from {names}"
    )
    parser.add_argument(
        "--residual-backend",
        choices=BACKENDS,
        default="eager",
        help="how the formulas of all structures except stock are computed (default: %(default)s)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="a binarised data folder (default: random pairs of 8 to 48 tokens)"
    )
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", help="padded positions per batch (default: 4096; CPU: 2048)"
    )


def settle_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Set defaults that depend on the device, and put stock first.

    Logs of fairseq and warnings of hydra and torch are disabled.
    """
    gpu = args.device == "cuda"
    args.size = args.size or ("base" if gpu else "small")
    args.precision = args.precision or (half_precision(args.device) if gpu else "fp32")
    args.max_tokens = args.max_tokens or (4096 if gpu else 2048)
    args.structures = list(dict.fromkeys([STOCK, *args.structures]))
    if args.precision == "fp16" and not gpu:
        parser.error("--precision fp16: not supported on a CPU; choose fp32 or bf16")
    check_data(parser, args)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def configuration(args: argparse.Namespace, structure: str, criterion: str = "fairseq", backend: str = "eager") -> Any:
    """Return fairseq's configuration for training a structure with a criterion and a --residual-backend."""
    layers, channels, inner, heads, dropout, _ = SIZES[args.size]
    dictionaries = {path.read_bytes() for path in args.data.glob("dict.*.txt")} if args.data else {b""}
    shared = "--share-all-embeddings" if len(dictionaries) == 1 else "--share-decoder-input-output-embed"
    stacks = [
        f"--{stack}-layers {layers} --{stack}-embed-dim {channels} --{stack}-ffn-embed-dim {inner} "
        f"--{stack}-attention-heads {heads}"
        for stack in ("encoder", "decoder")
    ]
    chosen = "" if structure == STOCK else f"--residual-backend {backend}"
    words = f"""
        {STRUCTURES[structure]} {chosen} {" ".join(stacks)} --dropout {dropout} {shared}
        --criterion {CRITERIA[criterion]} --label-smoothing 0.1 --distributed-world-size 1
        --optimizer adam --lr 1e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000
        {"" if args.precision == "fp32" else "--" + args.precision} {"--cpu" if args.device == "cpu" else ""}
    """
    parser = options.get_training_parser()
    namespace = options.parse_args_and_arch(parser, [str(args.data or "random"), *words.split()])
    return convert_namespace_to_omegaconf(namespace)


def random_dataset(dictionary: Dictionary, pairs: int) -> LanguagePairDataset:
    """Return pairs of random subwords with independent lengths, the same on every machine."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (2, pairs), generator=generator).tolist()

    def sentence(length: int) -> torch.Tensor:
        pieces = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=generator)
        pieces[-1] = dictionary.eos()
        return pieces

    source, target = (list(map(sentence, side)) for side in lengths)
    return LanguagePairDataset(source, lengths[0], dictionary, target, lengths[1], dictionary)


def load(args: argparse.Namespace) -> tuple[TranslationTask, LanguagePairDataset]:
    """Return fairseq's task and a training set: that of --data, or random pairs without --data."""
    config = configuration(args, STOCK).task
    if args.data:
        task = TranslationTask.setup_task(config)
        task.load_dataset("train")
        return task, task.dataset("train")
    dictionary = Dictionary()
    for number in range(SIZES[args.size][-1] - len(dictionary)):
        dictionary.add_symbol(f"piece{number}")
    return TranslationTask(config, dictionary, dictionary), random_dataset(dictionary, PAIRS)


def batches(task: TranslationTask, dataset: LanguagePairDataset, max_tokens: int, count: int) -> list[dict[str, Any]]:
    """Return the first `count` batches of an epoch, batched and shuffled as in fairseq-train."""
    epoch = task.get_batch_iterator(
        dataset,
        max_tokens=max_tokens,
        max_positions=(1024, 1024),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=8,
        seed=1,
    )
    return list(islice(epoch.next_epoch_itr(shuffle=True), count))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def layer_norm(model: Any) -> str:
    """Return the LayerNorm class of stock fairseq, which uses NVIDIA apex if it is installed."""
    kind = type(model.encoder.layers[0].final_layer_norm)
    return f"{kind.__module__}.{kind.__name__}"


def described(args: argparse.Namespace) -> dict[str, str]:
    """Return the size, precision, data and clock of a benchmark, for its title and results."""
    data = args.data.resolve().name if args.data else "random"
    return {"size": args.size, "precision": args.precision, "data": data, "clock": f"{args.clock} clock"}


def tokens(found: Sequence[dict[str, Any]]) -> int:
    """Return the number of target tokens in batches, without padding."""
    return sum(int(batch["ntokens"]) for batch in found)


def write(args: argparse.Namespace, found: dict[str, Any], title: str) -> None:
    """Write all results to --json, and plot the speed relative to stock fairseq to --plot."""
    measure.write(args, found)
    if args.plot:
        bars = {name: row["to_stock"] for name, row in found["structures"].items() if name != STOCK}
        plot_ratios(args.plot, {title: bars}, "tokens/s, stock = 1")
