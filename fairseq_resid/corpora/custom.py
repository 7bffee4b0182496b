"""A data folder from raw parallel text of one's own.

    python -m fairseq_resid.corpora.custom --name NAME --source SRC --target TGT --vocab-size N
        --train PREFIX --valid PREFIX --test PREFIX --out DATA

PREFIX.SRC and PREFIX.TGT are the two sides. The text goes to sentencepiece as it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import prepare, sources
from .fingerprints import Fingerprints
from .manifest import SPLITS, Manifest, Part
from .preparation import Options, prepare_data


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m fairseq_resid.corpora.custom`."""
    parser = argparse.ArgumentParser(prog="custom", description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="name of the corpus, for corpus.json")
    for split in SPLITS:
        parser.add_argument(f"--{split}", required=True, type=Path, metavar="PREFIX", help=f"raw {split} text")
    parser.add_argument("--source", required=True, metavar="LANG")
    parser.add_argument("--target", required=True, metavar="LANG")
    parser.add_argument("--vocab-size", required=True, type=int, help="pieces of the joined vocabulary")
    parser.add_argument("--out", required=True, type=Path, metavar="DATA")
    prepare.add_options(parser)
    args = parser.parse_args(argv)
    prepare.check_positive(parser, args, "workers", "vocab_size", "max_pieces")
    if args.source == args.target:
        parser.error(f"--source and --target are both {args.source}: they name the files of two languages")
    prefixes = {split: getattr(args, split) for split in SPLITS}
    given = prepare.settings(args)
    del given["vocab_size"]
    work = lambda: build(  # noqa: E731
        args.name,
        prefixes,
        args.source,
        args.target,
        args.vocab_size,
        args.out,
        args.workers,
        args.allow_low_ceiling,
        args.verify,
        args.show,
        **given,
    )
    return prepare.run("custom", work)


def build(
    name: str,
    prefixes: dict[str, Path],
    source: str,
    target: str,
    vocab_size: int,
    out: Path,
    workers: int = 1,
    allow_low_ceiling: bool = False,
    verify: bool = False,
    show: bool = False,
    **settings: Any,
) -> bool:
    """Make the data folder OUT from PREFIX.SRC and PREFIX.TGT of each split; as `preparation.prepare_data`.

    settings: fields of the manifest beside these, such as `clean`
    """
    fingerprints = Fingerprints(None)
    texts = []
    parts = {}
    for split in SPLITS:
        part = Part(prefixes[split].name, {})
        parts[split] = (part,)
        for language in (source, target):
            path = Path(f"{prefixes[split]}.{language}")
            if not path.is_file():
                raise ValueError(f"{path}: no such file")
            texts.append(sources.Text(split, part, language, path, None, fingerprints.of(path)))
    manifest = Manifest(name, source, target, vocab_size, parts, **settings)
    prepare.check_limits(manifest, settings)
    way = sources.Way((), None, out.parent, False)
    options = Options(way, out, workers, None, allow_low_ceiling, verify, show)
    return prepare_data(manifest, options, texts)


if __name__ == "__main__":
    sys.exit(main())
