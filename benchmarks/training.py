"""Measure the training speed of every residual structure, relative to stock fairseq's `transformer`.

    python benchmarks/training.py [--size base] [--data DIR] [--json FILE] [--plot FILE]

A step is one train_step of fairseq's Trainer: forward pass, label-smoothed loss, backward pass and Adam. Each structure
is timed with fairseq's criterion and with the chunked one. All of them do the same steps on the same batches and take
turns (A B C, C B A, ...) in one process. The speed in a round is the time of the stock model with fairseq's criterion
divided by the measured time; the script prints the median over all rounds and, in brackets, the quartiles.

Training with scripts/train.sh also sets glibc's allocator, which affects the large tensors of the loss most. To measure
with it, set the variables in docs/training.md.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any
from unittest import mock

import measure
import torch
import translation
from fairseq.trainer import Trainer
from measure import clock, machine, positive, shown, speed_ratio, spread, take_turns
from translation import CRITERIA, STOCK

FAIRSEQ = "fairseq"  # of CRITERIA


def build(args: argparse.Namespace, task: Any, structure: str, criterion: str) -> Trainer:
    """Return a fairseq Trainer for a structure and a criterion."""
    config = translation.configuration(args, structure, criterion, args.residual_backend)
    torch.manual_seed(1)
    return Trainer(config, task, task.build_model(config.model), task.build_criterion(config.criterion))


def peak_memory(steps: Any) -> int:
    """Return the peak memory of steps in bytes, beyond the memory allocated before them."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with mock.patch.object(torch.cuda, "reset_peak_memory_stats"):  # fairseq resets it after every step
        steps()
    return torch.cuda.max_memory_allocated() - before


def saved(trainer: Trainer, batch: Any) -> dict[str, int]:
    """Return the bytes that the forward pass and the loss of a batch save for the backward pass.

    The share of the loss is everything after the decoder's features: the output projection and the criterion.
    """
    batch, _ = trainer._prepare_sample(batch)
    model, known = trainer.model, list(trainer.model.parameters())
    step = measure.saved_bytes(lambda: trainer.criterion(model, batch), known)
    features = measure.saved_bytes(lambda: model(**batch["net_input"], features_only=True), known)
    return {"saved_bytes": step, "saved_bytes_of_the_loss": step - features}


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Time all structures with all criteria; return their results.

    The results of a structure are those with fairseq's criterion; those with another criterion are below its name.
    """
    task, dataset = translation.load(args)
    batches = translation.batches(task, dataset, args.max_tokens, args.steps)
    trainers = {key: build(args, task, *key) for key in product(args.structures, args.criteria)}

    def steps(trainer: Trainer) -> Any:
        def run() -> None:
            for batch in batches:
                # If memory runs out or a gradient overflows, fairseq skips the step, which would then look fast.
                if trainer.train_step([batch], raise_oom=True) is None:
                    raise SystemExit(f"training.py: error: --precision {args.precision}: a gradient overflowed")

        return run

    calls = {key: steps(trainer) for key, trainer in trainers.items()}
    seconds_of = clock(args.device, args.clock)
    for call in calls.values():  # the first steps allocate Adam's state and compile formulas
        call()
    seconds = take_turns(calls, args.rounds, seconds_of)
    tokens = translation.tokens(batches)
    structures: dict[str, Any] = {}
    for (structure, criterion), trainer in trainers.items():
        key = structure, criterion
        row = {
            "tokens_per_second": spread([tokens / each for each in seconds[key]]),
            "to_stock": speed_ratio(seconds, key, (STOCK, FAIRSEQ)),
            **saved(trainer, batches[0]),
        }
        if ("post_ln", criterion) in trainers:
            row["to_post_ln"] = speed_ratio(seconds, key, ("post_ln", criterion))
        if args.device == "cuda":
            row["peak_bytes_of_a_step"] = peak_memory(calls[key])
        if criterion == FAIRSEQ:
            structures[structure] = {"parameters": translation.parameters(trainer.model), **row}
        else:
            structures[structure][criterion] = {**row, "to_fairseq": speed_ratio(seconds, key, (structure, FAIRSEQ))}
    return {
        "stock_layer_norm": translation.layer_norm(trainers[STOCK, FAIRSEQ].model),
        "batches": len(batches),
        "target_tokens_per_batch": round(tokens / len(batches)),
        "structures": structures,
    }


def table(found: dict[str, Any]) -> list[str]:
    """Return the results as lines of text."""
    heads = f"{'to stock':20} {'to post_ln':20} {'saved, MiB':>10} of the loss"
    lines = [
        f"{found['batches']} batches of {found['target_tokens_per_batch']} target tokens",
        f"stock LayerNorm: {found['stock_layer_norm']}",
        "",
        f"{'structure':14} {'criterion':9} {'parameters':>12} {'tokens/s':>10}  {heads}",
    ]
    for (name, results), criterion in product(found["structures"].items(), CRITERIA):
        row = results if criterion == FAIRSEQ else results.get(criterion)
        if row is None:
            continue
        ratios = [shown(row[key]) if key in row else "" for key in ("to_stock", "to_post_ln")]
        speed = row["tokens_per_second"]["median"]
        sizes = [row[key] / 2**20 for key in ("saved_bytes", "saved_bytes_of_the_loss")]
        lines.append(
            f"{name:14} {criterion:9} {results['parameters']:12,} {speed:10,.0f}  {ratios[0]:20} {ratios[1]:20} "
            f"{sizes[0]:10,.1f} {sizes[1]:11,.1f}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    translation.add_flags(parser)
    parser.add_argument("--steps", type=positive, metavar="N", help="steps per turn (default: 20; CPU: 1)")
    parser.add_argument(
        "--criteria", nargs="+", choices=CRITERIA, default=[*CRITERIA], help="default: both; fairseq's is always timed"
    )
    measure.add_flags(parser, rounds=10)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    translation.settle_flags(parser, args)
    args.steps = args.steps or (20 if args.device == "cuda" else 1)
    args.criteria = list(dict.fromkeys([FAIRSEQ, *args.criteria]))
    found = {"machine": machine(args.device), **translation.described(args), **train(args)}

    print(", ".join([*translation.described(args).values(), f"{args.rounds} rounds"]))
    print("\n".join(table(found)))
    translation.write(args, found, f"training, {args.size}, {args.precision}")


if __name__ == "__main__":
    main()
