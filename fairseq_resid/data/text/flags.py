"""The flags that every command of the preparation has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from msgspec.structs import fields

from ...cli.machine import cores
from . import subwords
from .manifest import Manifest
from .preparation import LIMITS, SETTINGS


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a command."""
    add = parser.add_argument
    default = {item.name: item.default for item in fields(Manifest)}
    add("--workers", type=int, default=cores(), metavar="N", help="processes (default: all cores)")
    add(
        "--clean",
        action=argparse.BooleanOptionalAction,
        help="drop training pairs that are empty, too long, ... or not",
    )
    add(
        "--max-pieces",
        type=int,
        metavar="N",
        help=f"cleaning: drop pairs with more subwords on a side (default {default['max_pieces']})",
    )
    add(
        "--max-ratio",
        type=float,
        metavar="X",
        help="cleaning: drop pairs with more than X times as many subwords on one side as on the other "
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
        help=f"how sentencepiece normalises text before it cuts it (default {default['spm_normalizer']})",
    )
    add("--allow-low-ceiling", action="store_true", help="go on if not even a perfect model could score 95 BLEU")
    add("--verify", action="store_true", help="compare a finished data folder by checksums, not only by sizes")
    add("--show", action="store_true", help="list the valid and test sentences that are in the training text too")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the manifest that flags have given."""
    names = [name for name in SETTINGS if name not in ("name", "source", "target", "profile")]
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def check_limits(manifest: Manifest, given: Mapping[str, Any]) -> None:
    """Raise ValueError if limits are given to a preparation that does not clean, or a ratio that drops everything."""
    for name in LIMITS:
        if name in given and not manifest.clean:
            raise ValueError(f"--{name.replace('_', '-')} {given[name]}: only has an effect with --clean")
    if not manifest.max_ratio >= 1:
        raise ValueError(f"--max-ratio {manifest.max_ratio}: must be 1 or more")


def check_positive(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    """End with an error that names the flag if a number below 1 is given."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value}: must be 1 or more")
