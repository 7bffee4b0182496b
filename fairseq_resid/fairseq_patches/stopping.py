"""A training that is asked to stop saves first."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

logger = logging.getLogger(__name__)


class _Stop:
    """What this process was asked, and what the processes of a training agreed on: the number of a signal, or 0."""

    asked = 0
    agreed = 0


def _ask(number: int, _: Any) -> None:
    if number == _Stop.asked == signal.SIGINT:
        raise KeyboardInterrupt  # Ctrl-C a second time
    if not _Stop.asked:
        _Stop.asked = number
        # A worker that reads data may end by the same signal, and is not needed for the update at hand.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


# What DataLoader raises when a worker has ended: before it sent a batch, or while a tensor came from its memory.
WORKER_LOST = (RuntimeError, ConnectionError, EOFError)


def _has_lost_worker(error: Exception) -> bool:
    """Return whether what reads data has ended by the signal that stops this training: Slurm sends it to all."""
    return _Stop.asked > 0 and (not isinstance(error, RuntimeError) or "DataLoader worker" in str(error))


def _pass_on(number: int, _: Any) -> None:
    for process in multiprocessing.active_children():
        process.terminate()


@contextlib.contextmanager
def _answering(answer: Callable[[int, Any], None]) -> Iterator[None]:
    """Let `answer` take SIGINT, SIGTERM and SIGHUP, but for those that are ignored: under nohup, for example."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, answer)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remember_patience() -> None:
    """Save in every checkpoint how long --patience has waited, so that a resumed training stops when it would have.

    fairseq counts the validations without a better loss in attributes of a function, and a new process starts at 0.
    """
    import fairseq_cli.train as program
    from fairseq.trainer import Trainer

    save, load = Trainer.save_checkpoint, Trainer.load_checkpoint
    count = program.should_stop_early

    @functools.wraps(save)
    def save_with_patience(self, filename, extra_state):  # type: ignore[no-untyped-def]
        return save(self, filename, {**extra_state, "patience": dict(vars(count))})

    @functools.wraps(load)
    def load_patience(self, filename, reset_optimizer=False, *args, **kwargs):  # type: ignore[no-untyped-def]
        extra_state = load(self, filename, reset_optimizer, *args, **kwargs)
        vars(count).clear()
        if extra_state is not None and not reset_optimizer:
            vars(count).update(extra_state.get("patience", {}))
        return extra_state

    Trainer.save_checkpoint, Trainer.load_checkpoint = save_with_patience, load_patience


def save_when_stopped() -> None:
    """Let SIGINT, SIGTERM and SIGHUP end a training behind the update at hand, with a checkpoint, as 128 + signal.

    fairseq-train ends at once, and what it did since its last checkpoint is lost. Several processes get a signal at
    different moments, or one of them alone: the numbers that they sum after every update take it along. Processes that
    fairseq starts itself, one for each GPU, get it from the one that waits for them.
    """
    import fairseq_cli.train as program
    from fairseq import checkpoint_utils
    from fairseq.distributed import utils as distributed
    from fairseq.trainer import Trainer

    train, validate_and_save = program.train, program.validate_and_save
    aggregate, call_main = Trainer._aggregate_logging_outputs, distributed.call_main

    @functools.wraps(aggregate)
    def aggregate_and_agree(self, outputs, *stats, **kwargs):  # type: ignore[no-untyped-def]
        outputs, (*stats, asked) = aggregate(self, outputs, *stats, float(_Stop.asked > 0), **kwargs)
        if asked:
            _Stop.agreed = _Stop.asked or signal.SIGTERM
        return outputs, stats

    @functools.wraps(validate_and_save)
    def save_and_stop(cfg, trainer, task, epoch_itr, *args, **kwargs):  # type: ignore[no-untyped-def]
        is_alone = trainer.data_parallel_world_size == 1
        try:
            losses, is_last = validate_and_save(cfg, trainer, task, epoch_itr, *args, **kwargs)
        except WORKER_LOST as error:
            if not (is_alone and _has_lost_worker(error)):
                raise
            losses, is_last = [None], False  # no validation, and the update before it is kept
        if (stop := _Stop.asked if is_alone else _Stop.agreed) and not is_last:
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])
            logger.info(f"stopped by {signal.Signals(stop).name} after update {trainer.get_num_updates()}")
            if not is_alone:  # whoever waits for these processes ends all of them as soon as one has ended
                torch.distributed.barrier()
            raise SystemExit(128 + stop)
        return losses, is_last

    @functools.wraps(train)
    def train_until_stopped(cfg, trainer, *args, **kwargs):  # type: ignore[no-untyped-def]
        # fairseq checks the limits after an update: a finished training that resumes would make one too many.
        if trainer.get_num_updates() >= (cfg.optimization.max_update or math.inf):
            return [None], True
        if 0 < cfg.checkpoint.patience <= getattr(program.should_stop_early, "num_runs", 0):
            return [None], True
        # Before the workers that read data are forked: they inherit it, and outlive a Ctrl-C.
        with _answering(_ask):
            try:
                return train(cfg, trainer, *args, **kwargs)
            except WORKER_LOST as error:
                if _has_lost_worker(error):  # between two updates
                    raise SystemExit(128 + _Stop.asked) from error
                raise

    @functools.wraps(call_main)
    def call_and_pass_on(cfg, main, **kwargs):  # type: ignore[no-untyped-def]
        settings = cfg.distributed_training
        if main is program.main and settings.distributed_init_method is None:
            distributed.infer_init_method(settings)
        if main is not program.main or settings.distributed_init_method is None or settings.distributed_no_spawn:
            return call_main(cfg, main, **kwargs)
        with _answering(_pass_on):
            try:
                return call_main(cfg, main, **kwargs)
            except torch.multiprocessing.ProcessExitedException as error:
                if error.exit_code > 128:
                    raise SystemExit(error.exit_code) from error
                raise

    Trainer._aggregate_logging_outputs = aggregate_and_agree
    program.validate_and_save, program.train = save_and_stop, train_until_stopped
    distributed.call_main = call_and_pass_on
