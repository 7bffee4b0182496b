"""Settings for averaging and decoding a run: from the command line, the recipe, or the defaults, in that order.

A recipe lists its settings below a line `[evaluate]`, as options of `fairseq-resid evaluate`; run.json records them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from ..cli.frame import integer
from ..data.text.bleu import TOKENIZERS
from .run import Numbering, Run

LAST = 10  # checkpoints to average
# Options of fairseq-generate. fairseq divides a score by len^lenpen, tensor2tensor by ((5 + len) / 6)^lenpen, so the
# same value 0.6 has a slightly different effect.
DECODING = MappingProxyType({"beam": "4", "lenpen": "0.6", "max-len-a": "1", "max-len-b": "50", "max-tokens": "4096"})
RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")


@dataclass(frozen=True)
class Settings:
    """Settings for averaging and decoding.

    last, by: number and kind of the checkpoints to average; epochs: first and last epoch of each additional average
    are_epochs_required: whether missing epochs are an error; a run may end before the epochs in its recipe
    decoding: options of fairseq-generate, without leading dashes
    tokenize: sacrebleu's tokeniser; None for that of the data folder
    """

    last: int = LAST
    by: Numbering | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    are_epochs_required: bool = True
    decoding: Mapping[str, str] = field(default_factory=lambda: dict(DECODING))
    tokenize: str | None = None


def add_averaging_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--last", type=integer(1), metavar="N", help=f"average the last N numbered checkpoints (default {LAST})")
    add("--by", choices=("epoch", "update"), help="average checkpointN.pt (epoch) or checkpoint_E_U.pt (update)")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options; options that are not given are None."""
    add_averaging_flags(parser)
    add = parser.add_argument
    add(
        "--epochs",
        type=_range,
        action="append",
        metavar="FIRST-LAST",
        help="also score the average of the checkpoints of these epochs; can be repeated",
    )
    add("--beam", type=integer(1), metavar="N", help=f"beam size (default {DECODING['beam']})")
    add("--lenpen", type=float, metavar="X", help=f"length penalty (default {DECODING['lenpen']})")
    add(
        "--max-len-a",
        type=float,
        metavar="A",
        help="limit translations to A times the source length in subwords plus --max-len-b "
        f"(default {DECODING['max-len-a']})",
    )
    add("--max-len-b", type=int, metavar="B", help=f"see above (default {DECODING['max-len-b']})")
    add("--tokenize", choices=TOKENIZERS, help="sacrebleu's tokeniser for BLEU (default: that of the data folder)")


def _range(text: str) -> tuple[int, int]:
    match = RANGE.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text}: must be two epochs FIRST-LAST, such as 41-50")
    return int(match[1]), int(match[2])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the evaluation options of a recipe.

    Raises: ValueError naming the invalid or unknown option.
    """

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refuse  # type: ignore[method-assign]
    add_flags(parser)
    return parser.parse_args(list(argv))


def of(run: Run, given: argparse.Namespace | None = None) -> Settings:
    """Return the settings of a run; `given`: the options of the command line.

    Raises: ValueError if run.json is damaged or contains an invalid option.
    """
    record = run.read_record()
    own, mine = vars(parse(record.evaluate if record else [])), vars(given) if given else {}
    chosen = {name: value if mine.get(name) is None else mine[name] for name, value in own.items()}
    decoding = dict(DECODING)
    for name in ("beam", "lenpen", "max_len_a", "max_len_b"):
        if (found := chosen[name]) is not None:
            decoding[name.replace("_", "-")] = str(found) if isinstance(found, int) else f"{found:g}"
    epochs, is_given = tuple(chosen["epochs"] or ()), mine.get("epochs") is not None
    return Settings(chosen["last"] or LAST, chosen["by"], epochs, is_given, decoding, chosen["tokenize"])
