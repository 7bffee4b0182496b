"""Make a caption corpus from photographs and an image model: fairseq-resid prepare-mosaics --images DATA --network RUN

The features of a photograph are the input to the model's classifier. They are written to OUT.raw in the format of
bottom-up features, with the captions in Karpathy's format. The data folder OUT is then prepared from these files, as
`prepare-captions` does with those of COCO.

Training mosaics use photographs from the split `valid`, on which the model was not trained. Validation mosaics use a
tenth of the split `test`, and test mosaics use the rest of it. Neither the model nor the training mosaics use
photographs from `test`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import records
from ..cli import frame
from ..cli.progress import Progress
from ..data import folders
from ..data.captions import mosaics, prepare
from ..data.images import folder as images
from ..fairseq_patches import load_checkpoint
from ..files import replacing, write_text
from ..runs.run import FileState, Run
from ..runs.trained_on import find_data, is_trained_on
from ..tasks import kinds

TOGETHER = 500  # photographs per batch


def features_of(run: Run, data: Path, split: str, chosen: Sequence[int], cpu: bool) -> dict[int, np.ndarray]:
    """Return the input to a model's classifier for the chosen photographs from a split, by their index."""
    import torch

    from ..tasks.loading import load

    loaded = load(run, run.last, data, cpu)
    if not hasattr(loaded.model, "classify"):
        raise ValueError(f"{run.last}: has no classifier whose input could be used as features")
    seen: list[torch.Tensor] = []

    def keep(_: Any, given: tuple[torch.Tensor, ...]) -> None:
        seen.append(given[0].float().cpu())

    loaded.model.classify.register_forward_pre_hook(keep)
    dataset, found = loaded.task.open(split), dict[int, np.ndarray]()
    with torch.no_grad(), Progress(f"features of {split}", len(chosen), "photographs") as progress:
        for start in range(0, len(chosen), TOGETHER):
            now = list(chosen[start : start + TOGETHER])
            loaded.model(**loaded.moved(dataset.collater(now))["net_input"])
            pooled = seen.pop()
            found |= zip(now, (pooled.flatten(2).mean(dim=2) if pooled.dim() > 2 else pooled).numpy(), strict=True)
            progress.advance(len(now))
    return found


def check_network(run: Run, data: Path) -> None:
    """Check that an image model was trained on a data folder, but neither on its split `valid` nor on `test`.

    Raises: ValueError or OSError naming the run and the problem.
    """
    state = load_checkpoint(run.checkpoint(run.last.name))
    content = kinds.of_checkpoint(state.get("cfg")).folder.content
    if content != folders.IMAGES.content:
        raise ValueError(f"{run.path}: a model of {content}; must be a model of {folders.IMAGES.content}")
    trained = find_data(run, state)
    if folders.IMAGES.fingerprint(trained) != folders.IMAGES.fingerprint(data):
        raise ValueError(f"{run.path}: was trained on {trained}, which differs from --images {data}")
    for split in ("valid", "test"):
        if is_trained_on(state.get("cfg"), split):
            raise ValueError(
                f"{run.path}: was trained on the split {split}; mosaics need photographs that it has not seen"
            )


def make(data: Path, run: Run, out: Path, counts: Sequence[int], seed: int, cpu: bool) -> None:
    """Write the captions and features of all mosaics to OUT.raw, unless they exist, and prepare the data folder OUT."""
    check_network(run, data)
    raw, record = out.with_name(f"{out.name}.raw"), images.ImageRecord.of(data)
    made = mosaics.planned(data, counts, seed)
    network = FileState.of(run.last)
    settings: dict[str, Any] = {
        "images": folders.IMAGES.fingerprint(data), "mosaics": list(counts), "seed": seed,
        "network": [network.file, network.size, network.mtime_ns, network.sha256],
    }  # fmt: skip
    known = records.remembered(raw / "settings.json", dict)
    if known and FileState(*known["network"]).renewed(run.last):
        settings["network"] = known["network"]
    if known != settings:
        if known is not None and out.exists():
            raise ValueError(
                f"{out}: exists, but was not made from these files with these settings; remove it or choose "
                "another --out"
            )
        if raw.exists() and not (raw / "settings.json").is_file():
            raise ValueError(f"{raw}: was not created by this command; remove it or choose another --out")
        size = (record.shape[1], record.shape[2])
        lines, described = [], []
        for split, parts in made.items():
            used = sorted({index for mosaic, _ in parts for index in mosaic.cells.values()})
            features = features_of(run, data, split, used, cpu)
            lines += [mosaics.as_line(mosaic, features, size) for mosaic, _ in parts]
            described += [mosaics.as_json(mosaic, texts) for mosaic, texts in parts]
        with replacing(raw) as partial:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_text(partial / "features.tsv", "".join(f"{line}\n" for line in lines))
            write_text(partial / "dataset.json", json.dumps({"dataset": "mosaics", "images": described}))
            records.write(partial / "settings.json", settings)
            shutil.rmtree(raw, ignore_errors=True)
    photographs = images.open_split(data, "test", record)["pixels"]
    drawn = {str(mosaic.number): mosaic for mosaic, _ in made["test"]}
    options = prepare.CaptionOptions(
        raw / "dataset.json", raw / "features.tsv", out, thumbnail=lambda image: drawn[image].draw(photographs)
    )
    prepare.prepare(prepare.CUSTOM, options)


@frame.command(
    "prepare-mosaics",
    "Make a caption corpus of mosaics of photographs, with features of a trained image model.",
    again="resumes",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid prepare-mosaics`."""
    add = parser.add_argument
    add("--images", type=Path, required=True, metavar="DATA", help="data folder of images, made by prepare-images")
    add(
        "--network", type=Path, required=True, metavar="RUN", help="image run that was trained on the split train alone"
    )
    add(
        "--out",
        type=Path,
        default=Path("data-bin/mosaic-captions"),
        metavar="DATA",
        help="data folder of captions to create (default: %(default)s)",
    )
    add(
        "--mosaics",
        type=frame.integer(1),
        nargs=3,
        default=[10_000, 500, 1_000],
        metavar=("TRAIN", "VALID", "TEST"),
        help="number of mosaics in each split (default: 10000 500 1000)",
    )
    add("--seed", type=frame.integer(0), default=1, metavar="N", help="seed of the mosaics (default: 1)")
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    args = parser.parse_args(argv)
    make(args.images, Run(args.network), args.out, args.mosaics, args.seed, args.cpu)
