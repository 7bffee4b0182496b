"""Library messages that users can do nothing about. --verbose or FAIRSEQ_RESID_VERBOSE=1 shows them.

This covers our own process only. The output of fairseq's commands goes to a log file (children.run).
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Loggers, with the level up to which they are silenced. The comments say what they would log.
LOGGERS = {
    "fairseq.tasks.text_to_speech": logging.INFO,  # advice to install tensorboardX, which we do not need
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

VARIABLE = "FAIRSEQ_RESID_VERBOSE"  # --verbose sets it, also for the commands that this one starts


def is_verbose() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno > LOGGERS[record.name]


@contextmanager
def libraries() -> Iterator[None]:
    """Silence these loggers and warnings until the end of the block, unless the user wants to see them."""
    if is_verbose():
        yield
        return
    loggers = [logging.getLogger(None if name == "root" else name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_wanted)
    with warnings.catch_warnings():
        for text in WARNINGS:
            warnings.filterwarnings("ignore", text)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(_is_wanted)
