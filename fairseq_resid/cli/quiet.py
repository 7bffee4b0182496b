"""What the libraries say that a user can do nothing about: named here, shown with --verbose or FAIRSEQ_RESID_VERBOSE=1.

It holds in our own process. What fairseq's commands say goes to a log file (children.run).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Loggers, up to which level they are silent, and what they would say.
LOGGERS = {
    "fairseq.tasks.text_to_speech": logging.WARNING,  # to install tensorboardX: no task of ours
    "fairseq.tasks.fairseq_task": logging.INFO,  # sizes of datasets and batches
    "fairseq.tasks.translation": logging.INFO,  # dictionaries
    "fairseq.data.data_utils": logging.INFO,  # which file a dataset is loaded from
    "fairseq.checkpoint_utils": logging.INFO,
    "fairseq.file_utils": logging.INFO,
    "fairseq.models.fairseq_model": logging.INFO,
    "fairseq_resid.fairseq_patches": logging.INFO,
    "fairseq_resid.ops.dispatch": logging.INFO,  # which backend: a training's log has it
    "root": logging.INFO,
}
# Beginnings of warnings' texts, as regular expressions.
WARNINGS = (
    r"[\s\S]*version_base",  # hydra 1.0's way of being called, by fairseq
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
    """Show everything, or not; None leaves it to the environment."""
    global _verbose
    _verbose = on


def is_verbose() -> bool:
    """Return whether everything is to be shown."""
    return os.environ.get("FAIRSEQ_RESID_VERBOSE", "") not in ("", "0") if _verbose is None else _verbose


def _is_wanted(record: logging.LogRecord) -> bool:
    return is_verbose() or record.levelno > LOGGERS.get(record.name, logging.NOTSET)


@contextmanager
def libraries() -> Iterator[None]:
    """Silence what is named here, until the end of the block."""
    loggers = [logging.getLogger(None if name == "root" else name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_wanted)
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_unless_named(message: Warning | str, *rest: Any, **more: Any) -> None:
            if is_verbose() or not any(re.match(text, str(message)) for text in WARNINGS):
                show(message, *rest, **more)

        # When a warning comes, not by a filter: --verbose has not been read yet.
        warnings.showwarning = show_unless_named
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(_is_wanted)
