"""Make a data folder of captions from a JSON file and region features: fairseq-resid prepare-captions NAME ...

caption_folder.py describes the data folder. An interrupted preparation keeps the region features that it has written.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...cli.frame import command
from ...cli.progress import Progress
from ...console import say
from ...files import sha256, write_text
from .. import preparing
from ..recorded import SPLITS
from . import caption_folder
from .caption_folder import DICTIONARY, PARTS, CaptionRecord, Captions
from .features import FeatureSource, open_features, state_of
from .karpathy import LEAST, read_corpus


@dataclass(frozen=True)
class CaptionManifest:
    """A caption corpus. A field is not set if its value is not known in advance.

    dataset: the name in its JSON file; counts: number of images by split; width: number of features per region
    words: size of the dictionary in the paper
    """

    name: str
    dataset: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    width: int | None = None
    words: int | None = None


# MSCOCO 2014: split of Karpathy and Li 2015, features of Anderson et al. 2018, words of the SAS paper, section 4.3.
COCO = CaptionManifest("coco-captions", "coco", {"train": 113_287, "valid": 5_000, "test": 5_000}, 2048, 9_567)
CUSTOM = CaptionManifest("custom")  # the user's own captions
MANIFESTS = {manifest.name: manifest for manifest in (COCO, CUSTOM)}
TOGETHER = 100  # images per write; a preparation resumes after the last complete write
MARK = "settings.json"  # in the folder of an unfinished preparation
SHOWN = 5  # maximum number of ids in an error message


@dataclass(frozen=True)
class CaptionOptions:
    """Preparation options that are not in the manifest.

    thumbnail: returns the picture (height, width, 3) of an image of `valid` or `test`, by id
    """

    captions: Path
    features: Path
    out: Path
    allow_other: bool = False
    verify: bool = False
    thumbnail: Callable[[str], np.ndarray] | None = None


@command("prepare-captions", "Make a data folder of image captions.", again="resumes")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid prepare-captions`."""
    add = parser.add_argument
    add("name", choices=MANIFESTS, help="the corpus; custom: your own captions")
    add("--captions", type=Path, required=True, metavar="JSON", help="captions and splits, as in dataset_coco.json")
    add(
        "--features",
        type=Path,
        required=True,
        metavar="PATH",
        help="region features: a TSV file, a folder of TSV or npz files, or an HDF5 file",
    )
    preparing.add_folder_flags(parser, "captions and features", "data-bin/NAME")
    args = parser.parse_args(argv)
    out = args.out or Path("data-bin") / args.name
    options = CaptionOptions(args.captions, args.features, out, args.allow_other, args.verify)
    prepare(MANIFESTS[args.name], options)


def prepare(manifest: CaptionManifest, options: CaptionOptions) -> None:
    """Make the data folder OUT, unless it already contains exactly these captions.

    Raises: ValueError for bad input, or if OUT contains other captions; OSError.
    """
    out, sums = options.out, sha256(options.captions)
    features = options.features.resolve().name
    asked = {"name": manifest.name, "captions": sums, "features": features}
    read = {options.captions.name: sums, features: state_of(options.features)}
    if preparing.made(out, MARK, {**asked, "read": read}, lambda work, _: _make(manifest, options, asked, read, work)):
        record = CaptionRecord.of(out)
        preparing.show_differences(record)
        say(f"{out}: {record.words:,} words, {record.width:,} features per region; done")
        return
    known = preparing.finished(out, CaptionRecord)
    if known.asked != asked or known.read != read:
        raise ValueError(f"{out}: exists, but was not made from these files; remove it or choose another --out")
    CaptionRecord.checked(out, options.verify)
    preparing.show_differences(known)
    say(f"{out}: already contains these captions ({'checksums' if options.verify else 'sizes'} verified)")


def check_boxes(source: FeatureSource, images: Sequence[str]) -> None:
    """Raise ValueError if some images have boxes and others do not: a model would take a missing box for a position."""
    with Progress(f"boxes of {source.path}", len(images), "images") as progress:
        without = []
        for image in images:
            if not source.has_boxes(image):
                without.append(image)
            progress.advance(1)
    if 0 < len(without) < len(images):
        raise ValueError(
            f"{source.path}: {len(without):,} of {len(images):,} images have no boxes, for example "
            f"{', '.join(without[:SHOWN])}; must have boxes for all images or for none"
        )


def _make(
    manifest: CaptionManifest, options: CaptionOptions, asked: dict[str, str], read: dict[str, str], work: Path
) -> Path:
    """Write the data folder, and return its path in WORK.

    asked, read: of captions.json
    """
    corpus, wrong = read_corpus(options.captions), []
    counts = {split: len(corpus.words[split].ids) for split in SPLITS}
    if manifest.dataset and corpus.dataset != manifest.dataset:
        wrong.append(f"dataset {corpus.dataset[:40]!r}, not {manifest.dataset!r}")
    for split, count in manifest.counts.items():
        if counts[split] != count:
            wrong.append(f"{counts[split]:,} {split} images, not {count:,}")
    if wrong and not options.allow_other:
        raise ValueError(f"{options.captions}: {'; '.join(wrong)} (use --allow-other-data to accept this)")
    words = corpus.dictionary()
    if not words:
        raise ValueError(f"{options.captions}: no word occurs at least {LEAST} times in the training captions")
    if manifest.words not in (None, len(words)):
        wrong.append(f"{len(words):,} words, not {manifest.words:,}")
    source = open_features(options.features)
    for split in SPLITS:
        if missing := [image for image in corpus.words[split].ids if image not in source]:
            more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
            raise ValueError(f"{options.features}: no features for {split} images: {', '.join(missing[:SHOWN])}{more}")
    check_boxes(source, [image for split in SPLITS for image in corpus.words[split].ids])
    data = work / "data"
    (data / "ref").mkdir(parents=True, exist_ok=True)
    first = corpus.words["train"].ids[0]
    width = source.regions(first, None if options.allow_other else manifest.width)[0].shape[1]
    regions, has_boxes, size = {}, False, None
    for split in SPLITS:
        captions = corpus.words[split]
        total = regions[split] = _write_regions(data, split, captions.ids, source, width)
        has_boxes = has_boxes or bool(caption_folder.mapped(data, split, "boxes", (total, 4)).any())
        if options.thumbnail is not None and split != "train":
            pictures = np.stack([options.thumbnail(image) for image in captions.ids])
            (data / f"{split}.thumbnails").write_bytes(pictures.tobytes())
            size = (pictures.shape[1], pictures.shape[2])
        _write_captions(data / f"{split}.captions.tsv", captions)
        _write_captions(data / f"ref/{split}.tsv", corpus.references[split])
        facts = [f"{counts[split]:,} images, {sum(map(len, captions.texts)):,} captions, {total:,} regions"]
        if corpus.empty[split]:
            facts.append(f"{corpus.empty[split]:,} captions without words left out")
        if corpus.without_raw[split]:
            facts.append(f"{corpus.without_raw[split]:,} references made from `tokens`, because `raw` is empty")
        say(f"{split}: {'; '.join(facts)}")
    write_text(data / DICTIONARY, "".join(f"{word} {count}\n" for word, count in words))
    if manifest.width not in (None, width):
        wrong.append(f"{width:,} features per region, not {manifest.width:,}")
    record = CaptionRecord(
        name=options.out.name if manifest is CUSTOM else manifest.name,
        counts=counts,
        captions={split: sum(map(len, corpus.words[split].texts)) for split in SPLITS},
        regions=regions,
        width=width,
        words=len(words),
        empty=dict(corpus.empty),
        has_boxes=has_boxes,
        thumbnail=size,
        read=read,
        differences=wrong,
        unverified=[] if manifest is CUSTOM else ["captions and features (no known checksums)"],
        asked=asked,
    )
    record.write(data)
    return data


def _write_captions(file: Path, captions: Captions) -> None:
    rows = ("\t".join([image, *texts]) for image, texts in zip(captions.ids, captions.texts, strict=True))
    write_text(file, "".join(f"{row}\n" for row in rows))


def _write_regions(data: Path, split: str, images: Sequence[str], source: FeatureSource, width: int) -> int:
    """Append the regions of all images that have not been written yet; return the number of regions of the split.

    Raises: ValueError naming the image whose regions are damaged or have a different number of features.
    """
    row = {"features": 2 * width, "boxes": 16}  # bytes per region
    with ExitStack() as stack:
        opened = {part: stack.enter_context((data / f"{split}.{part}").open("ab")) for part in (*row, "regions")}
        sizes = {part: os.fstat(file.fileno()).st_size for part, file in opened.items()}
        counts = np.frombuffer((data / f"{split}.regions").read_bytes()[: sizes["regions"] // 2 * 2], PARTS["regions"])
        total = int(counts.sum(dtype=np.int64))
        if any(sizes[part] < total * size for part, size in row.items()):
            counts, total = counts[:0], 0
        opened["regions"].truncate(2 * len(counts))
        for part, size in row.items():
            opened[part].truncate(total * size)
        with Progress(f"features of {split}", len(images), "images", len(counts)) as progress:
            for start in range(len(counts), len(images), TOGETHER):
                found = [source.regions(image, width) for image in images[start : start + TOGETHER]]
                boxes = [np.zeros((len(part), 4)) if known is None else known for part, known in found]
                for part, values in (
                    ("features", np.concatenate([each for each, _ in found])),
                    ("boxes", np.concatenate(boxes)),
                    ("regions", np.array([len(each) for each, _ in found])),  # last, because resuming trusts it
                ):
                    opened[part].write(values.astype(PARTS[part]).tobytes())
                    opened[part].flush()
                total += sum(len(each) for each, _ in found)
                progress.advance(len(found))
    return total
