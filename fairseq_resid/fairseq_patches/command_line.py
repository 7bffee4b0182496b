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

from .loading import EVALUATED, is_plain
from .reader import shown

LITERALS = "only literals are allowed: numbers, strings, lists, tuples and dicts, such as (0.9, 0.98)"


def allow_bf16() -> None:
    """Make --bf16 work on CPU and GPU: options.parse_args_and_arch treats it as a TPU flag and sets args.tpu."""
    from fairseq import options

    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(*args, **kwargs):  # type: ignore[no-untyped-def]
        parsed = original(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "bf16", False) and find_spec("torch_xla") is None:
            namespace.tpu = False
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


def refuse_code_in_flags() -> None:
    """Refuse flags whose values fairseq would run as code, in recipes, in studies and on the command line.

    fairseq calls eval on some values while it parses the command line, and on others when it builds an optimizer or a
    model. Literals are allowed. A value that is not a Python expression is a usage error instead of a SyntaxError.
    """
    from fairseq import options, utils
    from fairseq.dataclass import utils as dataclass_utils

    def only_literals(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(evaluate)
        def checked(x: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_plain(x):
                raise argparse.ArgumentTypeError(f"{shown(x)}: {LITERALS}")
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
    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(parser, *args, **kwargs):  # type: ignore[no-untyped-def]
        parsed = original(parser, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        for name in EVALUATED & vars(namespace).keys():
            if not is_plain(value := getattr(namespace, name)):
                parser.error(f"argument --{name.replace('_', '-')}: {shown(value)}: {LITERALS}")
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


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
