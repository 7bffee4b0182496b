"""Patches for fairseq, each documented with the behaviour of fairseq that makes it necessary.

`--user-dir fairseq_resid` calls `apply()`, which patches fairseq in this process, for stock models too. Importing this
package patches nothing and does not require fairseq.
"""

import logging

from .command_line import change_flags, quiet_root_logger, refuse_code_in_flags, refuse_hydra_train
from .data import allow_hyphens_in_languages, keep_batches_on_resume, keep_last_batch, keep_place_on_other_devices
from .dictionaries import remember_dictionaries
from .errors import UserError
from .loading import (
    check_ensembles,
    check_finite,
    check_resumed,
    load_checkpoint,
    load_weights_only,
    name_missing_folders,
    naming,
)
from .misfits import name_misfits
from .model import BETTER_TRANSFORMER_COPIES, close_better_transformer_path
from .processes import compare_processes, send_checkpoints
from .stopping import remember_patience, save_when_stopped
from .training import DIVERGED, name_divergence, say_what_runs, skip_overflow_without_gpu, unscale_once
from .writing import keep_last_optimizer_state, save_at_every_interval, write_whole

# When fairseq is imported, it advises to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").addFilter(lambda record: "tensorboardX" not in record.getMessage())

__all__ = [
    "BETTER_TRANSFORMER_COPIES",
    "DIVERGED",
    "UserError",
    "apply",
    "check_finite",
    "load_checkpoint",
    "naming",
]


def apply() -> None:
    """Apply every patch. Call it once: fairseq imports a user-dir only once."""
    refuse_hydra_train()
    load_weights_only()
    name_misfits()
    name_missing_folders()
    check_ensembles()
    check_resumed()
    remember_dictionaries()
    say_what_runs()
    name_divergence()
    skip_overflow_without_gpu()
    unscale_once()
    save_when_stopped()
    remember_patience()
    compare_processes()
    send_checkpoints()
    write_whole()
    save_at_every_interval()
    keep_last_optimizer_state()
    allow_hyphens_in_languages()
    keep_last_batch()
    keep_batches_on_resume()
    keep_place_on_other_devices()
    close_better_transformer_path()
    change_flags()
    refuse_code_in_flags()
    quiet_root_logger()
