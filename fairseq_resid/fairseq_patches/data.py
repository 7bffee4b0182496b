"""Every example comes once in an epoch."""

from __future__ import annotations

import functools
import logging

import numpy as np

logger = logging.getLogger(__name__)


def keep_last_batch() -> None:
    """Give back the last batch, which fairseq-fixed's data_utils.batch_by_size drops without a word.

    It drops it when its size is no multiple of --required-batch-size-multiple (default 8), in training, validation
    and generation: 200 hypotheses for 203 sentences. Batches are slices of the ordered indices, so what is missing
    is the tail. Where nothing is dropped (fairseq 0.12.2) nothing changes.
    """
    from fairseq.data import data_utils

    original = data_utils.batch_by_size

    @functools.wraps(original)
    def batch_by_size(indices, *args, **kwargs):  # type: ignore[no-untyped-def]
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        if len(indices) == 0:  # fairseq-fixed looks at the last of no batches
            return []
        batches = original(indices, *args, **kwargs)
        kept = sum(map(len, batches))
        if kept < len(indices) and kwargs.get("fixed_shapes") is None:
            batches = [*batches, indices[kept:]]
        return batches

    data_utils.batch_by_size = batch_by_size


def keep_batches_on_resume() -> None:
    """Give a resumed training the batches of the one that was stopped.

    fairseq-fixed deals the pairs into batches by a seed plus the epoch in which the process started: resumed in epoch 2
    or later, the rest of the epoch holds pairs that were seen, and misses others. Where one iterator serves all
    epochs, the batches are those of a start in epoch 1; a task that makes new ones for every epoch is left alone.
    """
    from fairseq.tasks import FairseqTask

    original = FairseqTask.get_batch_iterator

    @functools.wraps(original)
    def get_batch_iterator(self, dataset, *args, **kwargs):  # type: ignore[no-untyped-def]
        epoch = kwargs.get("epoch", 1)
        per_epoch = kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
        if epoch <= 1 or per_epoch or not self.can_reuse_epoch_itr(dataset) or dataset in self.dataset_to_epoch_iter:
            return original(self, dataset, *args, **kwargs)
        iterator = original(self, dataset, *args, **{**kwargs, "epoch": 1})
        iterator.epoch = epoch
        dataset.set_epoch(epoch)
        return iterator

    FairseqTask.get_batch_iterator = get_batch_iterator


def keep_place_on_other_devices() -> None:
    """Let a training go on at the same place of its epoch on another number of processes.

    The state of fairseq's iterator counts the batches of one process. On half as many, half of those that were seen
    would come again; on twice as many, as many would be left out. Where the batches themselves are others, the place is
    that with the same share of the epoch behind it.
    """
    from fairseq.data.iterators import EpochBatchIterator

    state_dict, load_state_dict = EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict

    @functools.wraps(state_dict)
    def state_with_counts(self):  # type: ignore[no-untyped-def]
        return {**state_dict(self), "processes": self.num_shards, "batches": len(self.frozen_batches)}

    @functools.wraps(load_state_dict)
    def load_at_same_place(self, state):  # type: ignore[no-untyped-def]
        done = state.get("iterations_in_epoch", 0)
        here = (self.num_shards, len(self.frozen_batches))
        there = (state.get("processes", here[0]), state.get("batches", here[1]))
        if done and there != here:
            share = done * there[0] / there[1]
            place = round(share * here[1] / here[0])
            logger.info(
                f"epoch {state['epoch']} goes on behind batch {place} of {len(self)} of this process; "
                f"it was stopped behind batch {done} on {there[0]} processes, {share:.1%} of the epoch"
            )
            at = (state["epoch"], place) if place < len(self) else (state["epoch"] + 1, 0)
            state = {**state, "epoch": at[0], "iterations_in_epoch": at[1]}
        return load_state_dict(self, state)

    EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict = state_with_counts, load_at_same_place
