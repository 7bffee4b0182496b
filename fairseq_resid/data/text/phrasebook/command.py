"""Command line of the phrasebook: fairseq-resid prepare phrasebook --out DIR."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ....cli.frame import command
from ....foreign import say
from . import grammar


@command("prepare phrasebook", "Write the English to Vietnamese phrasebook: DIR/{train,valid,test}.{en,vi}.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid prepare phrasebook`."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random selection (default: %(default)s)")
    parser.add_argument("--train", type=int, default=8000, help="training pairs (default: %(default)s)")
    parser.add_argument("--valid", type=int, default=500, help="validation pairs (default: %(default)s)")
    parser.add_argument("--test", type=int, default=500, help="test pairs (default: %(default)s)")
    args = parser.parse_args(argv)
    folder = Path(os.path.abspath(args.out))  # gives "." and ".." a name that .partial can be appended to
    pairs = grammar.generate(args.seed, args.train, args.valid, args.test)
    is_new = grammar.write(folder, grammar.files(pairs))
    sizes = ", ".join(f"{split} {len(pairs[split]):,}" for split in grammar.SPLITS)
    say(f"{folder}: {sizes} pairs" + ("" if is_new else " (already complete, unchanged)"))
