"""Patches for the command lines and the logging of fairseq's programs."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from .dictionaries import FLAG, add_flag
from .loading import EVALUATED, is_plain
from .patching import wrap

LITERALS = "only literals are allowed: numbers, strings, lists, tuples and dicts, such as (0.9, 0.98)"


def change_flags() -> None:
    """Change the flags of all commands.

    - --bf16 works on CPU and GPU: options.parse_args_and_arch treats it as a TPU flag and sets args.tpu.
    - --allow-other-dictionary is added. The parsers are made before this package is imported.
    - Flags whose values fairseq runs as code when it builds an optimizer or a model are refused, unless they are
      literals.
    """
    from fairseq import options

    @wrap(options)
    def parse_args_and_arch(original, parser, *args, **kwargs):
        if FLAG not in parser._option_string_actions:
            add_flag(parser)
        parsed = original(parser, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "bf16", False) and find_spec("torch_xla") is None:
            namespace.tpu = False
        for name in EVALUATED & vars(namespace).keys():
            if not is_plain(value := getattr(namespace, name)):
                parser.error(f"argument --{name.replace('_', '-')}: {value!r:.100}: {LITERALS}")
        return parsed


def refuse_code_in_flags() -> None:
    """Refuse flags whose values fairseq runs as code while it parses the command line, unless they are literals.

    A value that is not a Python expression is a usage error instead of a SyntaxError.
    """
    from fairseq import utils
    from fairseq.dataclass import utils as dataclass_utils

    def only_literals(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(evaluate)
        def checked(x: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_plain(x):
                raise argparse.ArgumentTypeError(f"{x!r:.100}: {LITERALS}")
            return evaluate(x, *args, **kwargs)

        return checked

    names = ("eval_str_list", "eval_str_dict", "eval_bool")
    checked = {getattr(utils, name): only_literals(getattr(utils, name)) for name in names}
    checked[dataclass_utils.eval_str_list] = only_literals(dataclass_utils.eval_str_list)
    # Modules of fairseq import these functions by name.
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "fairseq"]:
        for name in names:
            if (function := getattr(module, name, None)) in checked:
                setattr(module, name, checked[function])


def quiet_root_logger() -> None:
    """Undo the root logger's DEBUG level, which fairseq-fixed sets on import (models/wav2vec)."""
    root = logging.getLogger()
    if root.level == logging.DEBUG:
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


def refuse_hydra_train() -> None:
    """Refuse to run under fairseq-hydra-train, which imports the user-dir after composing its config.

    Raises: SystemExit, because hydra formats every Exception itself and the hydra of fairseq 0.12.2 crashes doing so.
    """
    if os.path.basename(sys.argv[0]).startswith("fairseq-hydra-train"):
        raise SystemExit(
            "fairseq_resid: error: fairseq-hydra-train is not supported: "
            "use fairseq-train --user-dir fairseq_resid --arch ..."
        )
