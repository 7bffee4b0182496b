"""Command line of the phrasebook: python -m fairseq_resid.corpora.phrasebook --out DIR."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import grammar


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the phrasebook to a folder; return 0, or 2 with a line on stderr where that cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_resid.corpora.phrasebook",
        description="Write the English to Vietnamese phrasebook: DIR/{train,valid,test}.{en,vi}.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    parser.add_argument("--train", type=int, default=8000, help="training pairs (default: %(default)s)")
    parser.add_argument("--valid", type=int, default=500, help="validation pairs (default: %(default)s)")
    parser.add_argument("--test", type=int, default=500, help="test pairs (default: %(default)s)")
    options = parser.parse_args(arguments)
    folder = Path(os.path.abspath(options.out))  # so that "." and ".." have a name to put .partial after
    try:
        written = grammar.write(
            folder, grammar.files(grammar.generate(options.seed, options.train, options.valid, options.test))
        )
    except (ValueError, OSError) as error:
        print(f"phrasebook: {error}", file=sys.stderr)
        return 2
    sizes = ", ".join(f"{split} {getattr(options, split)}" for split in grammar.SPLITS)
    print(f"{folder}: {sizes} pairs" + ("" if written else " (already there, unchanged)"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
