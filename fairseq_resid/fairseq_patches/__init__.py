"""Patches for fairseq, each documented with the behaviour of fairseq that makes it necessary.

`--user-dir fairseq_resid` calls `apply()`, which patches fairseq in this process, for stock models too. Importing this
package patches nothing and does not require fairseq.
"""

import logging

from .errors import UserError

# When fairseq is imported, it advises to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").addFilter(lambda record: "tensorboardX" not in record.getMessage())

__all__ = ["UserError", "apply"]


def apply() -> None:
    """Apply every patch. Call it once: fairseq imports a user-dir only once."""
    # torch takes seconds to import, and commands that only read results use this package without it.
    from . import command_line, data, dictionaries, loading, misfits, model, processes, stopping, training, writing

    command_line.refuse_hydra_train()
    loading.load_weights_only()
    misfits.name_misfits()
    loading.name_missing_folders()
    loading.check_ensembles()
    loading.check_resumed()
    dictionaries.remember_dictionaries()
    training.say_what_runs()
    training.name_divergence()
    training.skip_overflow_without_gpu()
    training.unscale_once()
    stopping.save_when_stopped()
    stopping.remember_patience()
    processes.compare_processes()
    processes.send_checkpoints()
    writing.write_whole()
    writing.save_at_every_interval()
    writing.keep_last_optimizer_state()
    data.allow_hyphens_in_languages()
    data.keep_last_batch()
    data.keep_batches_on_resume()
    data.keep_place_on_other_devices()
    model.close_better_transformer_path()
    command_line.change_flags()
    command_line.refuse_code_in_flags()
    command_line.quiet_root_logger()
