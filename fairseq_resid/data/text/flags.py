"""Flags shared by `fairseq-resid prepare NAME` and `fairseq-resid prepare custom`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ...cli.frame import integer
from ...cli.machine import cores
from . import subwords
from .bleu import TOKENIZERS
from .manifest import DEFAULTS, SETTINGS, TextManifest


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a command."""
    add = parser.add_argument
    add("--workers", type=integer(1), default=cores(), metavar="N", help="processes (default: all cores)")
    add(
        "--clean",
        action=argparse.BooleanOptionalAction,
        help="drop unusable training pairs, such as empty or very long ones; --no-clean keeps them",
    )
    add(
        "--max-pieces",
        type=integer(1),
        metavar="N",
        help=f"with --clean: drop pairs with more than N subwords on a side (default: {DEFAULTS['max_pieces']})",
    )
    add(
        "--deduplicate",
        action="store_true",
        default=None,
        help="drop repeated training pairs, and training pairs that are also validation or test pairs",
    )
    add(
        "--spm-normalizer",
        choices=subwords.NORMALIZERS,
        help=f"sentencepiece's normalisation before segmentation (default: {DEFAULTS['spm_normalizer']})",
    )
    add(
        "--tokenize",
        choices=TOKENIZERS,
        help="sacrebleu's tokeniser for BLEU (default: zh for a Chinese target, ja-mecab for Japanese, ko-mecab for "
        "Korean, none for text that is tokenised already, else 13a)",
    )
    add("--allow-low-ceiling", action="store_true", help="continue even if a perfect model could not reach 95 BLEU")
    add("--show", action="store_true", help="list validation and test sentences that also occur in the training text")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the manifest fields that were set by flags."""
    names = [name for name in SETTINGS if name not in ("name", "source", "target", "vocab_from", "profile")]
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def check_limits(manifest: TextManifest, given: Mapping[str, Any]) -> None:
    """Raise ValueError for --max-pieces without --clean."""
    if "max_pieces" in given and not manifest.clean:
        raise ValueError(f"--max-pieces {given['max_pieces']}: only has an effect with --clean")
