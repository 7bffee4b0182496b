"""The flags and the log of fairseq's commands."""

from __future__ import annotations

import functools
import logging
import os
import sys
from importlib.util import find_spec


def allow_bf16() -> None:
    """Let --bf16 run on CPU and GPU: options.parse_args_and_arch takes it for a TPU flag and sets args.tpu."""
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


def quiet_root_logger() -> None:
    """Undo the root logger's DEBUG level, which fairseq-fixed sets on import (models/wav2vec)."""
    root = logging.getLogger()
    if root.level == logging.DEBUG:
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


def refuse_hydra_train() -> None:
    """Refuse to run under fairseq-hydra-train, which imports the user-dir after it has composed its config.

    Raises: SystemExit; hydra reports every Exception in a way of its own, and stock's hydra fails at that.
    """
    if os.path.basename(sys.argv[0]).startswith("fairseq-hydra-train"):
        raise SystemExit(
            "fairseq_resid: error: fairseq-hydra-train is not supported: "
            "use fairseq-train --user-dir fairseq_resid --arch ..."
        )
