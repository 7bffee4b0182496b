"""Command line for preparing a text corpus.

fairseq-resid prepare NAME [--raw DIR] [--mirror URL] [--limit N] [--workers N] [--out DATA] ...
fairseq-resid prepare custom ...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from ... import records
from ...cli.frame import command, integer
from .. import preparing
from . import custom, flags
from . import manifest as manifests
from .forms import Normalize
from .pipeline import TextOptions, prepare_data

PROFILES = records.read(Path(__file__).with_name("profiles.yaml"), dict[str, dict[str, dict[str, Any]]])
TOOLKITS, PUBLISHED = PROFILES["toolkits"], PROFILES["published"]
MORE = "fairseq-resid prepare custom ... makes a data folder from your own raw parallel text"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `fairseq-resid prepare`."""
    argv = sys.argv[1:] if argv is None else argv
    return custom.main(argv[1:]) if argv[:1] == ["custom"] else prepare(argv)


@command(
    "prepare",
    "Download, clean, tokenise and binarise a corpus.",
    again="resumes",
    epilog=MORE,
)
def prepare(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    add = parser.add_argument
    add("name", choices=manifests.names(), help="the corpus")
    preparing.add_source_flags(parser, "folder with texts or archives on disk; may be repeated", "every file")
    preparing.add_folder_flags(parser, "checksums and line counts", "data-bin/NAME")
    add("--limit", type=integer(1), metavar="N", help="use only the first N pairs of every text, for a quick trial")
    add(
        "--profile",
        choices=(*TOOLKITS, "published"),
        help="prepare the text as in another toolkit (form, cleaning, vocabulary); published: exactly the text of a "
        f"publication ({', '.join(PUBLISHED)})",
    )
    add("--vocab-size", type=integer(1), metavar="N", help="number of subwords of the joint BPE")
    add("--normalize", choices=get_args(Normalize), help="sides to apply Moses punctuation normalisation to")
    flags.add(parser)
    args = parser.parse_args(argv)
    manifest = manifests.read(args.name)
    given = flags.settings(args)
    if args.profile == "published":
        check_published(args, given)
    profile = {**TOOLKITS, "published": PUBLISHED.get(args.name, {})}.get(args.profile, {})
    if profile and manifest.form == "escaped":
        profile = {**profile, "form": "escaped", "plain_form": profile["form"]}
    manifest = replace(manifest, **{**profile, **given})
    if manifest.normalize != "none" and manifest.form == "plain":
        raise ValueError(f"--normalize {manifest.normalize}: has no effect, because {args.name} is not tokenised here")
    flags.check_limits(manifest, given)
    args.out = args.out or Path("data-bin") / (f"{args.name}-{manifest.profile}" if manifest.profile else args.name)
    prepare_data(manifest, TextOptions.of(args))


def check_published(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a corpus has no published profile, or if a flag would change it."""
    if args.name not in PUBLISHED:
        raise ValueError(f"--profile published: not available for {args.name}; available for {', '.join(PUBLISHED)}")
    for name, value in given.items():
        fixed = PUBLISHED[args.name].get(name, "the corpus's default")
        raise ValueError(
            f"--{name.replace('_', '-')} {value}: not allowed with --profile published, which fixes it ({fixed})"
        )
