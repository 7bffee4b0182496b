"""Command line of the preparation of a corpus that has a manifest.

python -m fairseq_resid.corpora.prepare NAME [--raw DIR] [--mirror URL] [--limit N] [--workers N] [--out DATA] ...
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..text import NORMALIZE
from . import manifest as manifests
from . import sources, subwords
from .fingerprints import Fingerprints
from .manifest import Manifest
from .preparation import LIMITS, SETTINGS, Options, prepare_data

# How others prepare the same text, as far as it can be said in these settings; the README names what cannot.
PROFILES: dict[str, dict[str, Any]] = {
    "tensor2tensor": {
        "form": "plain",
        "normalize": "none",
        "clean": False,
        "vocab_size": 2**15,
        "spm_normalizer": "identity",
    },
    "fairseq": {
        "form": "moses",
        "normalize": "both",
        "split_hyphens": True,
        "clean": True,
        "max_pieces": 250,
        "max_ratio": 1.5,
        "vocab_size": 40_000,
    },
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every front end of the preparation has."""
    add = parser.add_argument
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add("--workers", type=int, default=cores, metavar="N", help="processes (default: all cores)")
    add(
        "--clean",
        action=argparse.BooleanOptionalAction,
        help="drop training pairs that are empty, too long, ... or not",
    )
    default = {item.name: item.default for item in fields(Manifest)}
    add(
        "--max-pieces",
        type=int,
        metavar="N",
        help=f"cleaning: drop pairs with more on a side (default {default['max_pieces']})",
    )
    add(
        "--max-ratio",
        type=float,
        metavar="X",
        help="cleaning: drop pairs with more than X times as many pieces on one side as on the other "
        f"(default {default['max_ratio']})",
    )
    add(
        "--deduplicate",
        action="store_true",
        default=None,
        help="drop training pairs that came before, and those that are valid or test pairs",
    )
    add(
        "--spm-normalizer",
        choices=subwords.NORMALIZERS,
        help=f"what sentencepiece does to text before it cuts it (default {default['spm_normalizer']})",
    )
    add("--allow-low-ceiling", action="store_true", help="go on if not even a perfect model could score 95 BLEU")
    add("--verify", action="store_true", help="compare a data folder that is there by checksums, not only by sizes")
    add("--show", action="store_true", help="list the valid and test sentences that are in the training text too")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the manifest that flags have given."""
    names = [name for name in SETTINGS if name not in ("name", "source", "target")]
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def check_limits(manifest: Manifest, given: Mapping[str, Any]) -> None:
    """Raise ValueError if limits are given to a preparation that does not clean, or a ratio that drops everything."""
    for name in LIMITS:
        if name in given and not manifest.clean:
            raise ValueError(f"--{name.replace('_', '-')} {given[name]}: nothing is dropped without --clean")
    if not manifest.max_ratio >= 1:
        raise ValueError(f"--max-ratio {manifest.max_ratio}: must be 1 or more")


def check_positive(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    """End with a line that names the option where a number is given that is below 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value}: must be 1 or more")


def run(prog: str, work: Callable[[], object]) -> int:
    """Do the work of a command; return its exit code, with one line on stderr for a mistake or a failure."""
    try:
        work()
    except (ValueError, OSError) as error:
        copies = error.args[0] if isinstance(error, shutil.Error) else None
        # shutil.copytree lists all files that it could not copy, as (from, to, reason).
        told = str(copies[0][2] if isinstance(copies, list) else error)
        full = any(os.strerror(number) in told for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
        hint = "; make room and run the same command again: it goes on where it was stopped" if full else ""
        print(f"{prog}: error: {told}{hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m fairseq_resid.corpora.prepare`."""
    parser = argparse.ArgumentParser(prog="prepare", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("name", choices=manifests.names(), help="the corpus")
    add(
        "--raw",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="texts or archives on disk; may be repeated",
    )
    add("--mirror", metavar="URL", help="download every archive from URL/NAME (file:// too)")
    add("--out", type=Path, metavar="DATA", help="the folder to make (default data-bin/NAME)")
    add("--downloads", type=Path, default=Path("data-bin/downloads"), metavar="DIR", help="where downloads are kept")
    add("--limit", type=int, metavar="N", help="only the first N pairs of every text, to try it out")
    add("--profile", choices=PROFILES, help="prepare as others do: another form, cleaning and vocabulary")
    add("--vocab-size", type=int, metavar="N", help="pieces of the joined vocabulary")
    add("--normalize", choices=NORMALIZE, help="Moses punctuation normalisation of these sides")
    add(
        "--split-hyphens",
        action=argparse.BooleanOptionalAction,
        help="part words at hyphens, as Moses' tokenizer does with -a, or not",
    )
    add("--allow-other-data", action="store_true", help="accept checksums and line counts that are not the corpus'")
    add_options(parser)
    args = parser.parse_args(argv)
    check_positive(parser, args, "workers", "limit", "vocab_size", "max_pieces")
    if args.out is not None and not args.out.name:
        parser.error(f"--out {args.out}: must name a folder to be made")
    if args.raw and args.mirror:
        parser.error("--raw and --mirror: texts come from disk or from a mirror, not from both")
    for folder in args.raw:
        if not folder.is_dir():
            parser.error(f"--raw {folder}: no such folder")

    def work() -> None:
        manifest = manifests.read(manifests.MANIFESTS / f"{args.name}.yaml")
        profile = PROFILES[args.profile] if args.profile else {}
        if profile and manifest.form == "escaped":
            profile = {**profile, "form": "escaped", "plain_form": profile["form"]}
        given = settings(args)
        manifest = replace(manifest, **{**profile, **given})
        tokenising = {"normalize": manifest.normalize != "none", "split_hyphens": manifest.split_hyphens}
        if wrong := [name for name, on in tokenising.items() if on and manifest.form == "plain"]:
            flag = f"--{wrong[0].replace('_', '-')} {given.get(wrong[0], '')}".removesuffix(" True")
            raise ValueError(f"{flag}: the text of {args.name} is not tokenised here")
        check_limits(manifest, given)
        way = sources.Way(
            tuple(args.raw),
            args.mirror,
            args.downloads,
            args.allow_other_data,
            Fingerprints(None if args.verify else args.downloads / "fingerprints.json"),
        )
        out = args.out or Path("data-bin") / args.name
        prepare_data(
            manifest,
            Options(way, out, args.workers, args.limit, args.allow_low_ceiling, args.verify, args.show),
        )

    return run(parser.prog, work)


if __name__ == "__main__":
    sys.exit(main())
