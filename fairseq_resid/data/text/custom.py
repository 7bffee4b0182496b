"""Make a data folder from your own raw parallel text.

    fairseq-resid prepare custom --name NAME --source SRC --target TGT --vocab-size N
        --train PREFIX --valid PREFIX --test PREFIX... --out DATA

PREFIX.SRC and PREFIX.TGT are the two sides. They are segmented by sentencepiece without tokenisation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cli.frame import command
from . import flags, sources
from .fingerprints import Fingerprints
from .manifest import SPLITS, Part, TextManifest
from .preparation import prepare_data
from .text_steps import TextOptions


@command("prepare custom", "Make a data folder from your own raw parallel text.", again="resumes")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid prepare custom`."""
    parser.add_argument("--name", required=True, help="name of the corpus in corpus.json")
    for split in SPLITS[:2]:
        parser.add_argument(f"--{split}", required=True, type=Path, metavar="PREFIX", help=f"raw {split} text")
    parser.add_argument(
        "--test",
        required=True,
        type=Path,
        nargs="+",
        metavar="PREFIX",
        help="raw test text; several are allowed",
    )
    parser.add_argument("--source", required=True, metavar="LANG", help="source language, the suffix of its files")
    parser.add_argument("--target", required=True, metavar="LANG", help="target language, the suffix of its files")
    parser.add_argument("--vocab-size", required=True, type=int, help="number of subwords of the joint BPE")
    parser.add_argument("--out", required=True, type=Path, metavar="DATA", help="output folder")
    flags.add(parser)
    args = parser.parse_args(argv)
    flags.check_positive(parser, args, "workers", "vocab_size", "max_pieces")
    if not args.out.name:
        parser.error(f"--out {args.out}: must be a new folder")
    if args.source == args.target:
        parser.error(f"--source and --target: both are {args.source}; must be different")
    given = flags.settings(args)
    del given["vocab_size"]
    build(
        args.name,
        {"train": args.train, "valid": args.valid}
        | {f"test{number or ''}": prefix for number, prefix in enumerate(args.test)},
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
    """Make the data folder OUT from PREFIX.SRC and PREFIX.TGT of each split; see `preparation.prepare_data`.

    settings: other fields of the manifest, such as `clean`
    """
    fingerprints = Fingerprints(None)
    texts = []
    parts = {}
    for split, prefix in prefixes.items():
        part = Part(prefix.name, {})
        parts[split] = (part,)
        for language in (source, target):
            path = Path(f"{prefix}.{language}")
            if not path.is_file():
                raise ValueError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
            texts.append(sources.Text(split, part, language, path, None, fingerprints.of(path)))
    manifest = TextManifest(name, source, target, vocab_size, parts, **settings)
    flags.check_limits(manifest, settings)
    source_options = sources.TextSourceOptions((), None, out.parent, False)
    options = TextOptions(source_options, out, workers, None, allow_low_ceiling, verify, show)
    return prepare_data(manifest, options, texts)
