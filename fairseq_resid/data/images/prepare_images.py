"""Make a data folder of images from a release or from image files by class: fairseq-resid prepare-images NAME ...

image_folder.py describes the data folder. Images from a release keep its order; images from a folder are sorted by
class and then by file name. `valid` consists of the last training images of a release, or the last ones in every class
of a folder.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import features

from ...cli.frame import command, integer
from ...cli.machine import cores, versions
from ...cli.progress import Progress
from ...console import say
from .. import preparing
from ..recorded import SPLITS
from . import image_folder, sources
from . import manifest as manifests
from .image_folder import ImageRecord
from .manifest import ImageManifest
from .sources import Images, Source

MARK = "preparing.json"


@dataclass(frozen=True)
class ImageOptions(preparing.Options):
    """Options of the preparation that are not in the manifest.

    valid: number of training images that become the `valid` split; None: the number in the manifest, or else a tenth
    """

    workers: int = 1
    valid: int | None = None


@command("prepare-images", "Make a data folder of images.", again="starts over, but resumes the download")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid prepare-images`."""
    add, count = parser.add_argument, integer(1)
    add("name", choices=manifests.names(), help="the corpus; custom: your own folder of images by class")
    preparing.add_source_flags(
        parser,
        "the release archive, a folder with this archive, or a folder (or archive) with train/CLASS/IMAGE and "
        "test/CLASS/IMAGE; may be repeated",
        "the archive",
    )
    preparing.add_folder_flags(parser, "files and image counts", "data-bin/NAME")
    add("--valid", type=count, metavar="N", help="training images to hold out as the split valid (default: a tenth)")
    add(
        "--workers",
        type=count,
        default=cores(),
        metavar="N",
        help="processes that decode image files (default: all cores)",
    )
    args = parser.parse_args(argv)
    manifest = manifests.read(args.name)
    if manifest.file is None and not args.raw:
        parser.error(f"{args.name}: --raw is missing; pass the folder of your images")
    args.out = args.out or Path("data-bin") / args.name
    prepare(manifest, ImageOptions.of(args))


def prepare(manifest: ImageManifest, options: ImageOptions) -> None:
    """Make the data folder OUT, unless it already contains exactly these images.

    Raises: ValueError for bad input, or if OUT contains different images; ChildProcessError; OSError.
    """
    out = options.out
    settings = {"name": manifest.name, "valid": options.valid or manifest.valid}
    source = sources.on_disk(manifest, options) if options.raw else None

    def make(work: Path, _: int) -> Path:
        return _make(manifest, options, source or sources.downloaded(manifest, options), settings, work)

    if preparing.made(out, MARK, settings, make, keeps=False):
        record = ImageRecord.of(out)
        mean, deviation = (" ".join(f"{value:.4f}" for value in each) for each in (record.mean, record.deviation))
        say(f"mean {mean}, deviation {deviation}")
        preparing.show_differences(record)
        say(f"{out}: done")
        return
    record = preparing.finished(out, ImageRecord)
    preparing.check_settings(out, "different images", record.asked, settings)
    if source is not None and not source.was_read(record.read):
        raise ValueError(
            f"{out}: contains different images (not made from {', '.join(source.read)}); choose another --out"
        )
    ImageRecord.checked(out, options.verify)
    preparing.show_differences(record)
    say(f"{out}: already contains these images ({'checksums' if options.verify else 'sizes'} verified)")


def _make(manifest: ImageManifest, options: ImageOptions, source: Source, settings: dict[str, Any], work: Path) -> Path:
    """Write the data folder, and return its path in WORK."""
    data, raw = work / "data", work / "raw"
    for folder in (data, raw):
        shutil.rmtree(folder, ignore_errors=True)  # from a run that was killed
        folder.mkdir()
    images = source.open(raw, options.workers)
    counts = {part: len(images.parts[part].labels) for part in images.parts}
    _, height, width = images.shape
    total = " and ".join(f"{count:,} {part}" for part, count in counts.items())
    say(f"{', '.join(source.read)}: {total} images of {len(images.classes):,} classes, {width}x{height}")
    wrong = [
        f"{part} has {counts[part]:,} images; expected {expected:,}"
        for part, expected in manifest.counts.items()
        if counts[part] != expected
    ]
    if wrong and not options.allow_other:
        raise ValueError(
            f"not the images of {manifest.name}: {'; '.join(wrong)} (use --allow-other-data to accept this)"
        )
    held = options.valid or manifest.valid or max(1, counts["train"] // 10)
    mask = hold_out(images.parts["train"].labels, held, source.kind == "folder", images.classes)
    mean, deviation = _write(images, mask, data)
    record = ImageRecord(
        name=manifest.name if manifest.file else options.out.name,
        classes=list(images.classes),
        shape=images.shape,
        counts={"train": counts["train"] - held, "valid": held, "test": counts["test"]},
        mean=mean,
        deviation=deviation,
        source=source.kind,
        read=source.read,
        differences=[*source.differences, *wrong],
        unverified=list(source.unverified),
        asked=settings,
        # The rounding of the libraries that decode images may differ between versions.
        tools=versions(["pillow"]) | {"libjpeg": features.version("libjpeg_turbo") or str(features.version("jpg"))},
    )
    record.write(data)
    return data


def hold_out(labels: np.ndarray, count: int, by_class: bool, classes: Sequence[str]) -> np.ndarray:
    """Return a mask (N,) of the `count` training images that become the `valid` split.

    These are the last images, or with `by_class` the last of every class, in proportion to its size.
    Raises: ValueError if --valid is too large, naming a class that would have no training images left.
    """
    if count >= len(labels):
        raise ValueError(f"--valid {count}: must be less than the {len(labels):,} training images")
    if not by_class:
        return np.arange(len(labels)) >= len(labels) - count
    counts = np.bincount(labels, minlength=len(classes))
    # The differences between cumulative shares, rounded down, add up to exactly `count`.
    held = np.diff(np.cumsum(counts) * count // len(labels), prepend=0)
    if len(lost := np.flatnonzero((counts > 0) & (held >= counts))):
        raise ValueError(f"--valid {count}: would take all {counts[lost[0]]:,} training images of {classes[lost[0]]}")
    ends = np.cumsum(counts)[labels]  # the images are sorted by class
    return np.arange(len(labels)) >= ends - held[labels]


def _write(images: Images, held: np.ndarray, data: Path) -> tuple[list[float], list[float]]:
    """Write SPLIT.npy for every split; return the `moments` of the training split."""
    taken = {
        "train": {"train": ~held, "valid": held},
        "test": {"test": np.ones(len(images.parts["test"].labels), bool)},
    }
    histogram = np.zeros((images.shape[0], 256), np.int64)  # how often each value occurs in each channel
    with ExitStack() as opened:
        files = {split: opened.enter_context((data / f"{split}.npy").open("wb")) for split in SPLITS}
        for part, splits in taken.items():
            labels = images.parts[part].labels
            blocks = opened.enter_context(closing(images.parts[part].blocks()))
            for split, mask in splits.items():
                image_folder.begin(files[split], images.shape, int(mask.sum()))
                balance = np.bincount(labels[mask], minlength=len(images.classes))
                say(f"{split}: {mask.sum():,} images, {_balance(balance, images.classes)}")
            first = next(blocks)  # forks the workers, so it must come before the progress bar starts a thread
            with Progress(f"read {part}", len(labels), "images") as progress:
                for pixels in chain([first], blocks):
                    rows = np.empty(len(pixels), image_folder.dtype(images.shape))
                    now = slice(progress.done, progress.done + len(pixels))
                    rows["label"], rows["pixels"] = labels[now], pixels
                    for split, mask in splits.items():
                        some = rows[mask[now]]
                        files[split].write(some.tobytes())
                        if split == "train":
                            histogram += [
                                np.bincount(some["pixels"][:, channel].ravel(), minlength=256)
                                for channel in range(len(histogram))
                            ]
                    progress.advance(len(pixels))
    return moments(histogram)


def moments(histogram: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each channel, with pixel values scaled to 0 to 1.

    All sums are exact integers; only the square root and the divisions round.
    Shapes:   (C, 256), how often each of the values 0 to 255 occurs
    Raises: ValueError if a channel is constant, because normalising would divide by 0.
    """
    mean, deviation = [], []
    for channel in histogram.tolist():
        count = sum(channel)
        total = sum(value * times for value, times in enumerate(channel))
        squares = sum(value * value * times for value, times in enumerate(channel))
        mean.append(total / (255 * count))
        deviation.append(math.sqrt(count * squares - total * total) / (255 * count))
        if not deviation[-1]:
            raise ValueError("a channel of the training images is constant and cannot be normalised")
    return mean, deviation


def _balance(counts: np.ndarray, classes: Sequence[str]) -> str:
    low, high = int(np.argmin(counts)), int(np.argmax(counts))
    if counts[low] == counts[high]:
        return f"{counts[low]:,} per class"
    return f"{counts[low]:,} ({classes[low]}) to {counts[high]:,} ({classes[high]}) per class"
