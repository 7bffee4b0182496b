"""Read captions in Karpathy's JSON format, as in dataset_coco.json, and choose the words of the dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from ... import records
from ..recorded import SPLITS
from .caption_folder import Captions

SPLIT_NAMES = {"train": "train", "restval": "train", "val": "valid", "test": "test"}
LEAST = 5  # minimum count of a dictionary word in the training captions (SAS paper, section 4.3)
SPECIAL = {"<s>", "<pad>", "</s>", "<unk>"}  # fairseq's symbols


class Sentence(Struct):
    """One caption: its words without punctuation, and the original."""

    tokens: list[str]
    raw: str = ""


class Image(Struct):
    """An image; its id is `cocoid`, or else `imgid`."""

    split: str
    sentences: list[Sentence]
    cocoid: int | None = None
    imgid: int | None = None


class Dataset(Struct):
    """The content of the file."""

    images: list[Image]
    dataset: str = ""


@dataclass(frozen=True)
class CaptionCorpus:
    """All captions by split. words: those that a model is trained on; references: the original ones.

    empty: number of captions without words, which are left out, by split
    without_raw: number of captions without the original text, whose references are their words, by split
    """

    dataset: str
    words: Mapping[str, Captions]
    references: Mapping[str, Captions]
    empty: Mapping[str, int]
    without_raw: Mapping[str, int]

    def dictionary(self) -> list[tuple[str, int]]:
        """Return the words that occur at least LEAST times in the training captions, with counts, most frequent first.

        fairseq reads all other words as <unk>.
        """
        counts = Counter(word for texts in self.words["train"].texts for text in texts for word in text.split())
        found = ((word, count) for word, count in counts.items() if count >= LEAST and word not in SPECIAL)
        return sorted(found, key=lambda item: (-item[1], item[0]))


def read_corpus(path: Path) -> CaptionCorpus:
    """Read a file of captions.

    Raises: ValueError naming the file, and the image that lacks an id, captions or words, or has an unknown split;
    OSError.
    """
    found = records.read(path, Dataset)
    words, references = ({split: Captions([], []) for split in SPLITS} for _ in range(2))
    empty, without_raw = (dict.fromkeys(SPLITS, 0) for _ in range(2))
    known: set[int] = set()
    for place, image in enumerate(found.images, start=1):
        number = image.imgid if image.cocoid is None else image.cocoid
        if number is None:
            raise ValueError(f"{path}: image {place:,}: has no cocoid or imgid")
        wrong, split = "", SPLIT_NAMES.get(image.split)
        texts = [" ".join(" ".join(one.tokens).lower().split()) for one in image.sentences]
        raw = [" ".join(one.raw.split()) or text for one, text in zip(image.sentences, texts, strict=True)]
        kept = [pair for pair in zip(texts, raw, strict=True) if pair[0]]
        if number in known:
            wrong = "appears twice"
        elif split is None:
            wrong = f"split {image.split[:40]!r}: must be one of {', '.join(SPLIT_NAMES)}"
        elif not kept:
            wrong = "has no captions"
        if wrong or split is None:
            raise ValueError(f"{path}: image {number}: {wrong}")
        known.add(number)
        empty[split] += len(texts) - len(kept)
        without_raw[split] += sum(
            bool(text) and not one.raw.split() for one, text in zip(image.sentences, texts, strict=True)
        )
        for captions, side in ((words[split], 0), (references[split], 1)):
            captions.ids.append(str(number))
            captions.texts.append([pair[side] for pair in kept])
    if lacking := [split for split in SPLITS if not words[split].ids]:
        raise ValueError(f"{path}: has no {lacking[0]} images; train (or restval), val and test must each have some")
    return CaptionCorpus(found.dataset, words, references, empty, without_raw)
