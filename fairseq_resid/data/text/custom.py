"""Make a data folder from your own raw parallel text.

    fairseq-resid prepare custom --name NAME --source SRC --target TGT (--vocab-size N | --vocab-from OTHER)
        --train PREFIX --valid PREFIX --test PREFIX... --out DATA

PREFIX.SRC and PREFIX.TGT are the two sides. They are segmented by sentencepiece without tokenisation.
With --vocab-from, they are tokenised and segmented like the text of the data folder OTHER and get its dictionary, so
that a model that was trained on OTHER can be fine-tuned on DATA. The languages may be swapped or others, because both
sides share one dictionary.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cli.frame import command, integer
from .. import preparing
from ..fetch import describe
from . import flags, sources
from .folder import Corpus
from .manifest import SPLITS, Part, TextManifest
from .pipeline import TextOptions, prepare_data


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
    vocabulary = parser.add_mutually_exclusive_group(required=True)
    vocabulary.add_argument("--vocab-size", type=integer(1), help="number of subwords of the joint BPE")
    vocabulary.add_argument(
        "--vocab-from",
        type=Path,
        metavar="OTHER",
        help="use the tokenisation, subword model and dictionary of this data folder, for fine-tuning a model that was "
        "trained on it; its languages may be swapped or others",
    )
    preparing.add_folder_flags(parser)
    flags.add(parser)
    args = parser.parse_args(argv)
    if args.source == args.target:
        parser.error(f"--source and --target: both are {args.source}; must be different")
    given = flags.settings(args)
    if args.vocab_from is not None:
        if "spm_normalizer" in given:
            parser.error(f"--spm-normalizer: not allowed with --vocab-from; {args.vocab_from} determines it")
        given |= vocabulary_of(args.vocab_from)
    prefixes = {"train": args.train, "valid": args.valid}
    prefixes |= {f"test{number or ''}": prefix for number, prefix in enumerate(args.test)}
    parts, texts = {}, []
    for split, prefix in prefixes.items():
        part = Part(prefix.name, {})
        parts[split] = (part,)
        for language in (args.source, args.target):
            path = Path(f"{prefix}.{language}")
            texts.append(sources.Text(split, part, language, path, None, describe(path)))
    manifest = TextManifest(name=args.name, source=args.source, target=args.target, parts=parts, **given)
    flags.check_limits(manifest, given)
    prepare_data(manifest, TextOptions.of(args), texts)


def vocabulary_of(data: Path) -> dict[str, Any]:
    """Return the fields of a manifest that make a data folder with the vocabulary of another one.

    Raises: ValueError or OSError naming the folder or file and the problem.
    """
    corpus = Corpus.read(data)
    record = corpus.record
    corpus.segmenter()  # raises if there is no valid model
    dictionaries = [data / f"dict.{language}.txt" for language in (record.source, record.target)]
    contents = [file.read_bytes() for file in dictionaries]
    if contents[0] != contents[1]:
        raise ValueError(f"--vocab-from {data}: its two dictionaries differ; only a joined dictionary is supported")
    model = (data / str(record.restore.model)).read_bytes()
    normalizer = record.subwords.normalizer
    return {
        "vocab_size": record.vocab_size,
        "vocab_from": hashlib.sha256(hashlib.sha256(model).digest() + hashlib.sha256(contents[0]).digest()).hexdigest(),
        "subwords": record.restore.post_process,
        "form": record.text.form,
        "normalize": record.text.normalize,
        "split_hyphens": record.text.split_hyphens,
        **({"spm_normalizer": normalizer} if normalizer != "none" else {}),
    }
