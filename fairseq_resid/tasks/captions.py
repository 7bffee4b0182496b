"""The image_captioning task: images of a data folder as sequences of regions, and their captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.tasks import LegacyFairseqTask, register_task

from .. import models  # noqa: F401  (patches fairseq)
from ..data.captions import caption_folder as captions
from ..data.captions.caption_folder import CaptionData
from ..data.text.folder import check_dictionaries
from ..fairseq_patches import UserError

SELF_CRITICAL = "self_critical"  # a criterion that needs all captions of an image
MOST_POSITIONS = 1024  # regions of an image or words of a caption, unless the model sets other limits


class CaptionDataset(FairseqDataset):
    """Pairs of an image and a caption. With `by_image`, an example is an image with all of its captions.

    As with text in fairseq, the examples of a batch have similar numbers of regions and captions of similar lengths.
    """

    def __init__(self, data: CaptionData, split: str, words: Dictionary, by_image: bool, shuffles: bool) -> None:
        self.regions = captions.open_regions(data.path, split, data.record)
        self.by_image, self.shuffles, self.words = by_image, shuffles, words
        encoded = [
            [np.array([*map(words.index, text.split()), words.eos()], np.int64) for text in texts]
            for texts in data.captions(split).texts
        ]
        self.captions = encoded  # by image
        counts = [1 if by_image else len(each) for each in encoded]
        self.images = np.repeat(np.arange(len(encoded)), counts)  # the image of each example
        self.targets = [each for texts in encoded for each in (texts[:1] if by_image else texts)]
        self.src_sizes = np.diff(self.regions.ends, prepend=0)[self.images]
        self.tgt_sizes = np.array([len(each) for each in self.targets])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> int:
        return int(index)

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Return a batch: regions (B, S, width + 4) as `src_tokens`, and captions that end with EOS as `target`.

        With by_image, `references` contains the captions of every image as lists of ids.
        """
        if not samples:
            return {}
        images, targets = self.images[samples], [torch.from_numpy(self.targets[index]) for index in samples]
        found = [torch.from_numpy(self.regions.of(image)) for image in images]
        pad, eos = self.words.pad(), self.words.eos()
        batch = {
            "id": torch.tensor(samples),
            "net_input": {
                "src_tokens": torch.nn.utils.rnn.pad_sequence(found, batch_first=True),
                "src_lengths": torch.tensor([len(each) for each in found]),
                "prev_output_tokens": data_utils.collate_tokens(targets, pad, eos, move_eos_to_beginning=True),
            },
            "target": data_utils.collate_tokens(targets, pad),
            "nsentences": len(samples),
            "ntokens": sum(map(len, targets)),
        }
        if self.by_image:
            batch["references"] = [[text.tolist() for text in self.captions[image]] for image in images]
        return batch

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        longest: np.ndarray = np.maximum(self.src_sizes[indices], self.tgt_sizes[indices])
        return longest

    def num_tokens(self, index: int) -> int:
        return int(max(self.size(index)))

    def size(self, index: int) -> tuple[int, int]:
        return int(self.src_sizes[index]), int(self.tgt_sizes[index])

    def ordered_indices(self) -> np.ndarray:
        order = np.random.permutation(len(self)) if self.shuffles else np.arange(len(self))
        order = order[np.argsort(self.tgt_sizes[order], kind="mergesort")]
        return order[np.argsort(self.src_sizes[order], kind="mergesort")]

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: Any) -> tuple[np.ndarray, list[int]]:
        kept, ignored = data_utils.filter_paired_dataset_indices_by_size(
            self.src_sizes, self.tgt_sizes, indices, max_sizes
        )
        return kept, ignored


@register_task(captions.TASK)
class ImageCaptioningTask(LegacyFairseqTask):  # type: ignore[misc]
    """Describe an image in words. DATA is a folder prepared by `fairseq-resid prepare-captions`."""

    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("data", help="data folder with captions")
        parser.add_argument(
            "--by-image",
            action="store_true",
            help="use one example per image instead of one per caption, for fairseq-generate; implied by self_critical",
        )

    @classmethod
    def setup_task(cls, args: Any, **_: Any) -> ImageCaptioningTask:
        path = Path(args.data)
        try:
            data = CaptionData(path, captions.CaptionRecord.checked(path))
            check_dictionaries(path)
            return cls(args, data, Dictionary.load(str(path / captions.DICTIONARY)))
        except (ValueError, OSError) as error:
            raise UserError(str(error)) from None

    def __init__(self, args: Any, data: CaptionData, words: Dictionary) -> None:
        super().__init__(args)
        self.data, self.words = data, words
        self.width = data.record.width

    def load_dataset(self, split: str, combine: bool = False, **_: Any) -> None:
        """Load a split, by image if --by-image or the criterion requires it."""
        by_image = self.args.by_image or getattr(self.args, "criterion", "") == SELF_CRITICAL
        self.datasets[split] = self.read_split(split, by_image)

    def read_split(self, split: str, by_image: bool) -> CaptionDataset:
        """Return a split; only the training split is shuffled."""
        shuffles = split == getattr(self.args, "train_subset", "train")
        try:
            return CaptionDataset(self.data, split, self.words, by_image, shuffles)
        except (ValueError, OSError) as error:
            raise UserError(str(error)) from None

    def max_positions(self) -> tuple[int, int]:
        most = [getattr(self.args, f"max_{side}_positions", None) for side in ("source", "target")]
        return most[0] or MOST_POSITIONS, most[1] or MOST_POSITIONS

    @property
    def source_dictionary(self) -> None:
        return None

    @property
    def target_dictionary(self) -> Dictionary:
        return self.words
