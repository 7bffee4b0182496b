"""The image_classification task: images of a data folder, in batches determined by the seed and the epoch."""

from __future__ import annotations

import atexit
import gc
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.iterators import BackgroundConsumer
from fairseq.tasks import LegacyFairseqTask, register_task

from .. import models  # noqa: F401  (patches fairseq)
from ..cli.frame import integer
from ..data.images import augmentation
from ..data.images import image_folder as images
from ..data.images.image_folder import ImageRecord
from ..fairseq_patches import UserError

# Offset of the shuffling in the random stream of a seed and an epoch, far beyond the offsets of crops and flips.
ORDER = 1 << 64


class ImageDataset(FairseqDataset):
    """The images of one or more splits, "train" or "train+valid".

    In training, the order, crops and flips of an epoch depend only on the seed and the epoch's number. They are the
    same for any number of workers and devices, and after resuming.
    """

    # This makes fairseq request new batches in every epoch.
    can_reuse_epoch_itr_across_epochs = False

    def __init__(
        self, data: Path, splits: str, known: ImageRecord, seed: int, trains: bool, padding: int, flips: bool
    ) -> None:
        self.parts = [images.open_split(data, split, known) for split in splits.split("+")]
        self.ends = np.cumsum([len(part) for part in self.parts])
        self.known, self.seed, self.trains, self.padding, self.flips = known, seed, trains, padding, flips
        self.epoch = 1
        self.draws = lru_cache(maxsize=1)(self._draws)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> int:
        return int(index)  # the collater reads all images of a batch at once

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "draws"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.draws = lru_cache(maxsize=1)(self._draws)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _draws(self, epoch: int) -> augmentation.Draws:
        return augmentation.draw(self.seed, epoch, len(self), self.padding, self.flips)

    def raw(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels (N,) and the uint8 pixels (N, C, H, W) of these images."""
        found = np.empty(len(numbers), dtype=self.parts[0].dtype)
        of = np.searchsorted(self.ends, numbers, side="right")
        for place, part in enumerate(self.parts):
            mine = of == place
            found[mine] = part[numbers[mine] - (self.ends[place] - len(part))]
        return found["label"], found["pixels"]

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Return a batch: `images` (N, C, H, W) in fp32, channels last in memory, and `target` (N,)."""
        if not samples:
            return {}
        numbers = np.asarray(samples, dtype=np.int64)
        labels, pixels = self.raw(numbers)
        batch = augmentation.normalise(pixels, self.known.mean, self.known.deviation)
        if self.trains:
            batch = augmentation.shift(batch, numbers, self.draws(self.epoch), self.padding)
        return {
            "id": torch.from_numpy(numbers),
            "net_input": {"images": torch.from_numpy(batch).contiguous(memory_format=torch.channels_last)},
            "target": torch.from_numpy(labels.astype(np.int64)),
            "nsentences": len(numbers),
            "ntokens": len(numbers),
        }

    def ordered_indices(self) -> np.ndarray:
        if not self.trains:
            return np.arange(len(self), dtype=np.int64)
        generator = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch], counter=ORDER))
        return generator.permutation(len(self))

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return batches of exactly --batch-size images; the last one may be smaller."""
        if max_sentences is None or max_tokens is not None:
            raise UserError("--max-tokens: not supported for images; set the number of images with --batch-size")
        return [indices[start : start + max_sentences] for start in range(0, len(indices), max_sentences)]

    def num_tokens(self, index: int) -> int:
        return 1

    def size(self, index: int) -> int:
        return 1


@atexit.register
def end_loading() -> None:
    """Wait for the threads that have read their last batch and are shutting down their worker processes.

    If the interpreter exits before they end, they abort it with "terminate called without an active exception".
    """
    for thread in threading.enumerate():
        # The thread increments `count` only after it has delivered the batch.
        if isinstance(thread, BackgroundConsumer) and thread.count + 1 >= (thread._max_len or 0):
            thread.join(5)


@register_task(images.TASK)
class ImageClassificationTask(LegacyFairseqTask):  # type: ignore[misc]
    """Predict the class of an image. DATA is a folder prepared by `fairseq-resid prepare-images`."""

    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("data", help="data folder with images")
        parser.add_argument(
            "--crop-padding",
            type=integer(0),
            default=4,
            metavar="N",
            help="in training, random crop after zero-padding by N pixels on each side (default: 4; 0: no crop)",
        )
        parser.add_argument("--no-flip", action="store_true", help="disable random horizontal flips in training")

    @classmethod
    def setup_task(cls, args: Any, **_: Any) -> ImageClassificationTask:
        try:
            known = images.ImageRecord.of(Path(args.data))
        except (ValueError, OSError) as error:
            raise UserError(str(error)) from None
        return cls(args, known)

    def __init__(self, args: Any, known: ImageRecord) -> None:
        super().__init__(args)
        self.known = known

    def load_dataset(self, split: str, combine: bool = False, **_: Any) -> None:
        """Load a split; only the training split is shuffled, cropped and flipped."""
        self.datasets[split] = self.open(split, split == getattr(self.args, "train_subset", "train"))

    def open(self, split: str, trains: bool = False) -> ImageDataset:
        """Return a split, augmented if `trains` is true."""
        moves = self.args.crop_padding, not self.args.no_flip
        try:
            return ImageDataset(Path(self.args.data), split, self.known, self.args.seed, trains, *moves)
        except ValueError as error:
            raise UserError(str(error)) from None

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Return an iterator whose worker processes end with the epoch.

        fairseq-fixed keeps the workers alive so that one iterator can serve all epochs. This task creates a new
        iterator for each epoch, so the old workers would live until garbage collection, which takes 5 s per process.
        """
        iterator = super().get_batch_iterator(*args, **kwargs)
        iterator.persistent_workers = iterator.reuse_dataloader = False
        return iterator

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Free the previous epoch's iterators, which fairseq keeps, and its worker processes, which 0.12.2 keeps."""
        gc.collect()

    def max_positions(self) -> None:
        return None

    @property
    def source_dictionary(self) -> None:
        return None

    @property
    def target_dictionary(self) -> None:
        return None
