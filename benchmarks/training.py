"""Measure the training speed of every residual structure, relative to stock fairseq's `transformer`.

    python benchmarks/training.py [--size base] [--data DIR] [--json FILE] [--plot FILE]

A step is one train_step of fairseq's Trainer: forward pass, label-smoothed loss, backward pass and Adam. All structures
do the same steps on the same batches and take turns (A B C, C B A, ...) in one process. The speed in a round is the
stock model's time divided by the structure's; the script prints the median over all rounds and, in brackets, the
quartiles.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest import mock

import measure
import torch
import translation
from fairseq.trainer import Trainer
from measure import clock, machine, positive, shown, speed_ratio, spread, take_turns
from translation import STOCK


def build(args: argparse.Namespace, task: Any, structure: str) -> Trainer:
    """Return a fairseq Trainer for a structure."""
    config = translation.configuration(args, structure)
    torch.manual_seed(1)
    return Trainer(config, task, task.build_model(config.model), task.build_criterion(config.criterion))


def peak_memory(steps: Any) -> int:
    """Return the peak memory of steps in bytes, beyond the memory allocated before them."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with mock.patch.object(torch.cuda, "reset_peak_memory_stats"):  # fairseq resets it after every step
        steps()
    return torch.cuda.max_memory_allocated() - before


def saved(trainer: Trainer, batch: Any) -> int:
    """Return the bytes that the forward pass and the loss of a batch save for the backward pass."""
    batch, _ = trainer._prepare_sample(batch)
    return measure.saved_bytes(lambda: trainer.criterion(trainer.model, batch), trainer.model.parameters())


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Time all structures; return their results."""
    task, dataset = translation.load(args)
    batches = translation.batches(task, dataset, args.max_tokens, args.steps)
    trainers = {name: build(args, task, name) for name in args.structures}

    def steps(trainer: Trainer) -> Any:
        def run() -> None:
            for batch in batches:
                # If memory runs out or a gradient overflows, fairseq skips the step, which would then look fast.
                if trainer.train_step([batch], raise_oom=True) is None:
                    raise SystemExit(f"training.py: error: --precision {args.precision}: a gradient overflowed")

        return run

    calls = {name: steps(trainer) for name, trainer in trainers.items()}
    seconds_of = clock(args.device, args.clock)
    for name, call in calls.items():  # the first steps allocate Adam's state and compile GPU kernels
        with translation.watched(args, name):
            call()
    seconds = take_turns(calls, args.rounds, seconds_of)
    tokens = translation.tokens(batches)
    structures: dict[str, Any] = {}
    for name, trainer in trainers.items():
        structures[name] = {
            "parameters": translation.parameters(trainer.model),
            "tokens_per_second": spread([tokens / each for each in seconds[name]]),
            "to_stock": speed_ratio(seconds, name, STOCK),
            "saved_bytes": saved(trainer, batches[0]),
        }
        if "post_ln" in trainers:
            structures[name]["to_post_ln"] = speed_ratio(seconds, name, "post_ln")
        if args.device == "cuda":
            structures[name]["peak_bytes_of_a_step"] = peak_memory(calls[name])
    return {
        "stock_layer_norm": translation.layer_norm(trainers[STOCK].model),
        "batches": len(batches),
        "target_tokens_per_batch": round(tokens / len(batches)),
        "structures": structures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    translation.add_flags(parser)
    parser.add_argument("--steps", type=positive, metavar="N", help="steps per turn (default: 20; CPU: 1)")
    measure.add_flags(parser, rounds=10)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    translation.settle_flags(parser, args)
    args.steps = args.steps or (20 if args.device == "cuda" else 1)
    found = {"machine": machine(args.device), **translation.described(args), **train(args)}

    work = f"{found['batches']} batches of {found['target_tokens_per_batch']} target tokens, {args.rounds} rounds"
    print(", ".join([*translation.described(args).values(), work]))
    print(f"stock LayerNorm: {found['stock_layer_norm']}\n")
    print(f"{'structure':14} {'parameters':>12} {'tokens/s':>10}  {'to stock':20} {'to post_ln':20} saved, MiB")
    for name, row in found["structures"].items():
        ratios = [shown(row[key]) if key in row else "" for key in ("to_stock", "to_post_ln")]
        speed = row["tokens_per_second"]["median"]
        size = row["saved_bytes"] / 2**20
        print(f"{name:14} {row['parameters']:12,} {speed:10,.0f}  {ratios[0]:20} {ratios[1]:20} {size:10,.1f}")
    translation.write(args, found, f"training, {args.size}, {args.precision}")


if __name__ == "__main__":
    main()
