"""Save a checkpoint before a signal stops training."""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .patching import wrap

logger = logging.getLogger(__name__)


class _Stop:
    """The signal that this process received, and the one that all processes agreed on; 0 if there is none."""

    received = 0
    agreed = 0


def _receive(number: int, _: Any) -> None:
    if number == _Stop.received == signal.SIGINT:
        raise KeyboardInterrupt  # the second Ctrl-C
    if not _Stop.received:
        _Stop.received = number
        # The same signal may kill a data loading worker, which the current update no longer needs.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


# Errors of DataLoader if a worker has died before sending a batch, or while a tensor was being read from its memory.
WORKER_LOST = (RuntimeError, ConnectionError, EOFError)


def _has_lost_worker(error: Exception) -> bool:
    """Return whether the signal that stops training killed a data loading worker. Slurm signals all processes."""
    return _Stop.received > 0 and (not isinstance(error, RuntimeError) or "DataLoader worker" in str(error))


def _forward(number: int, _: Any) -> None:
    for process in multiprocessing.active_children():
        process.terminate()


@contextlib.contextmanager
def _handling(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `handle`, except those that are ignored, for example under nohup."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remember_patience() -> None:
    """Save the state of --patience in every checkpoint, so that resuming does not delay early stopping.

    fairseq counts validations without improvement in attributes of a function, and a new process starts at 0.
    """
    import fairseq_cli.train as program
    from fairseq.trainer import Trainer

    count = program.should_stop_early

    @wrap(Trainer)
    def save_checkpoint(original, self, filename, extra_state):
        return original(self, filename, {**extra_state, "patience": dict(vars(count))})

    @wrap(Trainer)
    def load_checkpoint(original, self, filename, reset_optimizer=False, *args, **kwargs):
        extra_state = original(self, filename, reset_optimizer, *args, **kwargs)
        vars(count).clear()
        if extra_state is not None and not reset_optimizer:
            vars(count).update(extra_state.get("patience", {}))
        return extra_state


def save_when_stopped() -> None:
    """After SIGINT, SIGTERM or SIGHUP, finish the current update, save a checkpoint and exit with 128 + signal.

    fairseq-train would exit at once and lose all updates since its last checkpoint. With several processes, the signal
    may reach them at different times, or only one of them, so it is added to the numbers that they sum after every
    update. If fairseq starts one process per GPU itself, the parent process forwards the signal to them.
    """
    import fairseq_cli.train as program
    from fairseq import checkpoint_utils
    from fairseq.distributed import utils as distributed
    from fairseq.trainer import Trainer

    @wrap(Trainer)
    def _aggregate_logging_outputs(original, self, outputs, *stats, **kwargs):
        outputs, (*stats, count) = original(self, outputs, *stats, float(_Stop.received > 0), **kwargs)
        if count:
            _Stop.agreed = _Stop.received or signal.SIGTERM
        return outputs, stats

    @wrap(program)
    def validate_and_save(original, cfg, trainer, task, epoch_itr, *args, **kwargs):
        is_alone = trainer.data_parallel_world_size == 1
        try:
            losses, is_last = original(cfg, trainer, task, epoch_itr, *args, **kwargs)
        except WORKER_LOST as error:
            if not (is_alone and _has_lost_worker(error)):
                raise
            losses, is_last = [None], False  # the validation is lost, but the update before it is not
        if (stop := _Stop.received if is_alone else _Stop.agreed) and not is_last:
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])
            logger.info(f"stopped by {signal.Signals(stop).name} after update {trainer.get_num_updates()}")
            if not is_alone:  # the parent process kills all others as soon as one exits
                torch.distributed.barrier()
            raise SystemExit(128 + stop)
        return losses, is_last

    @wrap(program)
    def train(original, cfg, trainer, *args, **kwargs):
        # fairseq checks its limits only after an update, so resuming a finished run would add one.
        if trainer.get_num_updates() >= (cfg.optimization.max_update or math.inf):
            return [None], True
        if 0 < cfg.checkpoint.patience <= getattr(program.should_stop_early, "num_runs", 0):
            return [None], True
        # Install the handler before data loading workers are forked: they inherit it and survive a Ctrl-C.
        with _handling(_receive):
            try:
                return original(cfg, trainer, *args, **kwargs)
            except WORKER_LOST as error:
                if _has_lost_worker(error):  # between two updates
                    raise SystemExit(128 + _Stop.received) from error
                raise

    @wrap(distributed)
    def call_main(original, cfg, main, **kwargs):
        settings = cfg.distributed_training
        if main is program.main and settings.distributed_init_method is None:
            distributed.infer_init_method(settings)
        if main is not program.main or settings.distributed_init_method is None or settings.distributed_no_spawn:
            return original(cfg, main, **kwargs)
        with _handling(_forward):
            try:
                return original(cfg, main, **kwargs)
            except torch.multiprocessing.ProcessExitedException as error:
                if error.exit_code > 128:
                    raise SystemExit(error.exit_code) from error
                raise
