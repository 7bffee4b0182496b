"""Test with which structures deep models train: train each briefly on a real corpus, at several learning rates.

    python benchmarks/depth.py DATA [--layers 18 18] [--updates 200] [--lr 2e-3 5e-3] [--json FILE]

Each run is one `fairseq-train` command: C = 64, FFN 256, 4 heads, batches of 1,024 padded positions, dropout 0.1, label
smoothing 0.1, Adam (0.9, 0.98), no clipping, warmup over half of the updates, seed 1. A model trains if the run does
not diverge and the validation NLL is finite and below a bound that is fixed in advance: the NLL of a unigram model of
the target subwords in the training text, minus half a nat. Results that are already in --json are reused.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from measure import check_data, hardware, machine, positive
from translation import STOCK, STRUCTURES

from fairseq_resid import connections
from fairseq_resid.cli.children import TAIL, program, user_dir
from fairseq_resid.files import last_lines

BELOW_UNIGRAM = 0.5  # nats
MODEL = "--{0}-embed-dim 64 --{0}-ffn-embed-dim 256 --{0}-attention-heads 4 --{0}-layers {1}"
TRAINING = """
    --share-all-embeddings --dropout 0.1 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas (0.9,0.98) --clip-norm 0 --lr-scheduler inverse_sqrt --max-tokens 1024
    --max-tokens-valid 4096 --seed 1 --log-format json --log-interval 10 --no-save --num-workers 0
    --required-batch-size-multiple 1
"""


def unigram_nll(data: Path) -> float:
    """Return the validation NLL of a unigram model of the training text, in nats per target subword including EOS."""
    parser = options.get_training_parser()
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, [str(data), "--arch", STOCK]))
    task = TranslationTask.setup_task(config.task)
    counts = {}
    for split in ("train", "valid"):
        task.load_dataset(split)
        target = task.dataset(split).tgt
        pieces = torch.cat([target[index] for index in range(len(target))])
        counts[split] = np.bincount(pieces.numpy(), minlength=len(task.target_dictionary))
    smoothed = counts["train"] + 1.0  # some subwords occur only in the validation set
    return float(-(counts["valid"] * np.log(smoothed / smoothed.sum())).sum() / counts["valid"].sum())


def figures(log: Path) -> dict[str, Any]:
    """Return the results in the log of a training run."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found: dict[str, Any] = {"valid_nll": None, "loss": [], "gradient_norm": []}
    for line in re.findall(r"^.*?(\{\"epoch\".*\})$", text, re.MULTILINE):
        row = json.loads(line)
        if "valid_nll_loss" in row:
            found["valid_nll"] = float(row["valid_nll_loss"]) * math.log(2)
        elif "loss" in row:
            found["loss"].append(float(row["loss"]))
            found["gradient_norm"].append(float(row["gnorm"]))
    return found


def train(args: argparse.Namespace, name: str, lr: float, log: Path) -> dict[str, Any]:
    """Train one structure; return its results."""
    encoder, decoder = args.layers
    words = [STRUCTURES[name], MODEL.format("encoder", encoder), MODEL.format("decoder", decoder), TRAINING]
    words += [f"--lr {lr} --warmup-updates {max(1, args.updates // 2)} --max-update {args.updates} {args.flags}"]
    command = [program("fairseq-train"), str(args.data), "--user-dir", user_dir(), *" ".join(words).split()]
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        )
    found = figures(log)
    is_finite = done.returncode == 0 and found["valid_nll"] is not None and math.isfinite(found["valid_nll"])
    last = "\n".join(last_lines(log, TAIL))
    if done.returncode and "training diverged at update" not in last:
        raise SystemExit(f"depth.py: error: {name} at lr {lr} failed:\n{last}")
    return {**found, "is_finite": is_finite, "seconds": time.monotonic() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="a binarised data folder")
    parser.add_argument("--layers", nargs=2, type=positive, default=[18, 18], metavar=("ENCODER", "DECODER"))
    parser.add_argument("--updates", type=positive, default=200, metavar="N")
    parser.add_argument("--lr", nargs="+", type=float, default=[2e-3, 5e-3])
    names = list(dict.fromkeys(map(connections.canonical, connections.names())))
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=names, metavar="NAME")
    parser.add_argument("--flags", default="", help="further flags for fairseq-train, as one string")
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for results; existing results in it are reused")
    args = parser.parse_args()
    check_data(parser, args)
    logging.disable(logging.WARNING)  # fairseq logs every file that it loads
    warnings.simplefilter("ignore")
    bound = unigram_nll(args.data) - BELOW_UNIGRAM
    setting = {"data": args.data.name, "layers": args.layers, "updates": args.updates, "flags": args.flags}
    setting["bound"] = round(bound, 3)
    rows: list[dict[str, Any]] = []
    if args.json and args.json.is_file():
        kept = json.loads(args.json.read_text(encoding="utf-8"))
        if kept["setting"] != setting:
            parser.error(f"--json {args.json}: contains results for {kept['setting']}, not for {setting}")
        rows = kept["rows"]
    print(f"{args.layers[0]}+{args.layers[1]} layers, {args.updates} updates; trains: valid NLL below {bound:.3f}")
    log = Path(f"{args.json or 'depth'}.log")
    for lr in args.lr:
        for name in args.structures:
            row = next((row for row in rows if (row["structure"], row["lr"]) == (name, lr)), None)
            if row is None:
                row = {"structure": name, "lr": lr, "machine": hardware(machine("cpu")), **train(args, name, lr, log)}
                row["trains"] = row["is_finite"] and row["valid_nll"] < bound
                rows.append(row)
                if args.json:
                    partial = args.json.with_name(f"{args.json.name}.partial")
                    found = {"setting": setting, "rows": rows}
                    partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                    partial.replace(args.json)
            nll = f"{row['valid_nll']:.3f}" if row["is_finite"] else "not finite"
            print(f"{name:18} {lr:<8g} {nll:>10}  {'trains' if row['trains'] else ''}", flush=True)
    log.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
