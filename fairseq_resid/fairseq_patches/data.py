"""Patches that make every epoch contain every example exactly once."""

from __future__ import annotations

import logging

import numpy as np

from .dictionaries import language_pair
from .patching import wrap

logger = logging.getLogger(__name__)


def allow_hyphens_in_languages() -> None:
    """Infer language codes with hyphens, such as pt-BR, from the names of the files in a data folder.

    fairseq splits the second part of any name at its only hyphen: of dict.pt-BR.txt, it makes the languages pt and BR.
    """
    from fairseq.data import data_utils

    data_utils.infer_language_pair = language_pair


def keep_last_batch() -> None:
    """Restore the last batch, which fairseq-fixed's data_utils.batch_by_size drops silently.

    It drops a batch whose size is not a multiple of --required-batch-size-multiple (default 8), in training, validation
    and generation: 203 sentences give 200 hypotheses. Batches are consecutive slices of the indices, so only the tail
    can be missing. fairseq 0.12.2 drops nothing, and this patch changes nothing there.
    """
    from fairseq.data import data_utils

    @wrap(data_utils)
    def batch_by_size(original, indices, *args, **kwargs):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        if len(indices) == 0:  # fairseq-fixed would index the last batch of an empty list
            return []
        batches = original(indices, *args, **kwargs)
        kept = sum(map(len, batches))
        if kept < len(indices) and kwargs.get("fixed_shapes") is None:
            batches = [*batches, indices[kept:]]
        return batches


def keep_batches_on_resume() -> None:
    """Resume training with the same batches as before.

    fairseq-fixed seeds its batching with the epoch in which the process started. After a resume in epoch 2 or later,
    the rest of the epoch would repeat some examples and skip others. If one iterator serves all epochs, we always batch
    as in epoch 1. Tasks that build new batches every epoch are unaffected.
    """
    from fairseq.tasks import FairseqTask

    @wrap(FairseqTask)
    def get_batch_iterator(original, self, dataset, *args, **kwargs):
        epoch = kwargs.get("epoch", 1)
        per_epoch = kwargs.get("disable_iterator_cache") or kwargs.get("update_epoch_batch_itr")
        if epoch <= 1 or per_epoch or not self.can_reuse_epoch_itr(dataset) or dataset in self.dataset_to_epoch_iter:
            return original(self, dataset, *args, **kwargs)
        iterator = original(self, dataset, *args, **{**kwargs, "epoch": 1})
        iterator.epoch = epoch
        dataset.set_epoch(epoch)
        return iterator


def keep_place_on_other_devices() -> None:
    """Resume at the same position of the epoch on a different number of processes.

    fairseq's iterator saves the number of batches that one process has seen. On half as many processes, half of the
    examples seen would repeat; on twice as many, an equal number of unseen examples would be skipped. If the batches
    have changed too, we resume at the same fraction of the epoch.
    """
    from fairseq.data.iterators import EpochBatchIterator

    @wrap(EpochBatchIterator)
    def state_dict(original, self):
        return {**original(self), "processes": self.num_shards, "batches": len(self.frozen_batches)}

    @wrap(EpochBatchIterator)
    def load_state_dict(original, self, state):
        done = state.get("iterations_in_epoch", 0)
        here = (self.num_shards, len(self.frozen_batches))
        there = (state.get("processes", here[0]), state.get("batches", here[1]))
        if done and there != here:
            share = done * there[0] / there[1]
            place = round(share * here[1] / here[0])
            logger.info(
                f"epoch {state['epoch']} resumes after batch {place} of {len(self)} on this process; it was stopped "
                f"after batch {done} ({share:.1%} of the epoch; processes: {there[0]} then, {here[0]} now)"
            )
            at = (state["epoch"], place) if place < len(self) else (state["epoch"] + 1, 0)
            state = {**state, "epoch": at[0], "iterations_in_epoch": at[1]}
        return original(self, state)
