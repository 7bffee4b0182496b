"""Measure the decoding speed of every residual structure at beam 4, relative to stock fairseq's `transformer`.

    python benchmarks/decoding.py [--size base] [--data DIR] [--json FILE] [--plot FILE]

fairseq's own SequenceGenerator decodes with untrained models. The output length is fixed, so every structure does the
same number of steps on the same sentences. Structures take turns, as in training.py. The speed in a round is the stock
model's time divided by the structure's; the script prints the median over all rounds and, in brackets, the quartiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import measure
import torch
import translation
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from measure import clock, machine, positive, shown, speed_ratio, spread, take_turns
from translation import STOCK

BEAM = 4


def build(args: argparse.Namespace, task: Any, structure: str) -> Any:
    """Return a structure's model, prepared as in fairseq-generate."""
    config = translation.configuration(args, structure, backend=args.residual_backend)
    torch.manual_seed(1)
    model = task.build_model(config.model)
    model.to(device=args.device, dtype=translation.PRECISIONS[args.precision])
    model.eval()
    model.prepare_for_inference_(config)
    return model


def decode(args: argparse.Namespace) -> dict[str, Any]:
    """Time all structures; return their results."""
    task, dataset = translation.load(args)
    batches = translation.batches(task, dataset, args.max_tokens, args.batches)
    if args.device == "cuda":
        batches = [utils.move_to_cuda(batch) for batch in batches]
    # min_len is the number of tokens before the end of sentence; max_len_b is the maximum of that number.
    settings = GenerationConfig(beam=BEAM, max_len_a=0, max_len_b=args.length, min_len=args.length)
    models = {name: build(args, task, name) for name in args.structures}
    tokens = 0

    def generation(model: Any) -> Callable[[], None]:
        generator = task.build_generator([model], settings)

        def run() -> None:
            nonlocal tokens
            tokens = 0
            for batch in batches:
                found = task.inference_step(generator, [model], batch)
                tokens += sum(len(hypotheses[0]["tokens"]) for hypotheses in found)

        return run

    calls = {name: generation(model) for name, model in models.items()}
    seconds_of = clock(args.device, args.clock)
    for call in calls.values():
        call()
    seconds = take_turns(calls, args.rounds, seconds_of)
    structures = {
        name: {
            "tokens_per_second": spread([tokens / each for each in seconds[name]]),
            "to_stock": speed_ratio(seconds, name, STOCK),
        }
        for name in models
    }
    sentences = sum(len(batch["id"]) for batch in batches)
    return {"sentences": sentences, "tokens": tokens, "structures": structures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    translation.add_flags(parser)
    parser.add_argument("--batches", type=positive, metavar="N", help="batches per turn (default: 4; CPU: 1)")
    parser.add_argument(
        "--length", type=positive, default=25, metavar="N", help="tokens per translation (default: %(default)s)"
    )
    measure.add_flags(parser, rounds=10)
    args = parser.parse_args()
    measure.check_flags(parser, args)
    translation.settle_flags(parser, args)
    args.batches = args.batches or (4 if args.device == "cuda" else 1)
    found = {"machine": machine(args.device), **translation.described(args), **decode(args)}

    work = f"{found['sentences']} sentences of {args.length} tokens, beam {BEAM}, {args.rounds} rounds"
    print(", ".join([*translation.described(args).values(), work]), end="\n\n")
    print(f"{'structure':14} {'tokens/s':>10}  {'to stock':20}")
    for name, row in found["structures"].items():
        print(f"{name:14} {row['tokens_per_second']['median']:10,.0f}  {shown(row['to_stock']):20}")
    translation.write(args, found, f"decoding, {args.size}, {args.precision}, beam {BEAM}")


if __name__ == "__main__":
    main()
