"""Library messages that users can do nothing about. --verbose or FAIRSEQ_RESID_VERBOSE=1 shows them.

This covers our own process only. The output of fairseq's commands goes to a log file (children.run).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Loggers, with the level up to which they are silenced. The comments say what they would log.
LOGGERS = {
    "fairseq.tasks.fairseq_task": logging.INFO,  # sizes of datasets and batches
    "fairseq.tasks.translation": logging.INFO,  # dictionaries
    "fairseq.data.data_utils": logging.INFO,  # the file that a dataset is loaded from
    "fairseq.checkpoint_utils": logging.INFO,
    "fairseq.file_utils": logging.INFO,
    "fairseq.utils": logging.INFO,  # that the plugin has already been imported
    "fairseq.models.fairseq_model": logging.INFO,
    "fairseq_resid.ops.compilation": logging.INFO,  # that an old backend means eager
    "root": logging.INFO,
}
# Regular expressions for warnings, matched from the first character.
WARNINGS = (
    r"[\s\S]*version_base",  # fairseq calls hydra as in version 1.0
    r"[\s\S]*'config' is validated",
    r"[\s\S]*strict flag",
    r"[\s\S]*hydra.experimental",
    r".*torch.jit.script. is deprecated",
    r".*torch.cuda.amp.autocast",
    r".*pin_memory",
    r".*mismatched key_padding_mask",
)

_verbose: bool | None = None  # --verbose; None: not given


def set_verbose(on: bool | None) -> None:
    """Set whether to show all messages; None means that the environment variable decides."""
    global _verbose
    _verbose = on


def is_verbose() -> bool:
    return os.environ.get("FAIRSEQ_RESID_VERBOSE", "") not in ("", "0") if _verbose is None else _verbose


def _is_wanted(record: logging.LogRecord) -> bool:
    return is_verbose() or record.levelno > LOGGERS.get(record.name, logging.NOTSET)


@contextmanager
def libraries() -> Iterator[None]:
    """Silence these loggers and warnings until the end of the block."""
    loggers = [logging.getLogger(None if name == "root" else name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_wanted)
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_unless_named(message: Warning | str, *rest: Any, **more: Any) -> None:
            if is_verbose() or not any(re.match(text, str(message)) for text in WARNINGS):
                show(message, *rest, **more)

        # Checked at each warning instead of by a filter, because --verbose has not been parsed yet.
        warnings.showwarning = show_unless_named
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(_is_wanted)
