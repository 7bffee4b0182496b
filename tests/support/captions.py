"""Small caption corpora in the official formats, and their preparation."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_resid.data.captions import prepare_captions
from support import errors

Capture = pytest.CaptureFixture[str]
NOUNS = ("cat", "dog", "ship", "frog")
WIDTH = 8
SPLITS = {"train": 10, "restval": 6, "val": 4, "test": 6}


def images(counts: dict[str, int] = SPLITS) -> list[dict[str, Any]]:
    """Return the images of a JSON file. Image n shows noun number n modulo 4 and has two captions."""
    found: list[dict[str, Any]] = []
    for split, count in counts.items():
        for _ in range(count):
            number, noun = 100 + len(found), NOUNS[len(found) % len(NOUNS)]
            texts = (f"A {noun} on the grass.", f"There is a {noun}, a small one!")
            sentences = [
                {"tokens": text.lower().replace(",", "").rstrip(".!").split(), "raw": text, "sentid": 1}
                for text in texts
            ]
            found.append(
                {"cocoid": number, "imgid": 1, "split": split, "filename": "COCO_1.jpg", "sentences": sentences}
            )
    return found


def write_json(path: Path, found: list[dict[str, Any]], dataset: str = "coco") -> Path:
    path.write_text(json.dumps({"dataset": dataset, "images": found}))
    return path


def regions(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features (n, WIDTH) of a 640x480 image and its boxes in pixels; both depend on its noun."""
    count = 1 + number % 3
    features = np.zeros((count, WIDTH), np.float32)
    features[:, (number - 100) % len(NOUNS)] = 1
    features[:, -1] = number / 1000
    boxes = np.array([[10 * k, 20, 100 + k, 480] for k in range(count)], np.float32)
    return features, boxes


def line(number: int, features: np.ndarray, boxes: np.ndarray, size: tuple[int, int] = (640, 480)) -> str:
    """Return the line of an image in a TSV file."""
    code = [base64.b64encode(np.ascontiguousarray(part, "<f4").tobytes()).decode() for part in (boxes, features)]
    return "\t".join(map(str, (number, *size, len(features), *code))) + "\n"


def write_tsv(path: Path, numbers: list[int]) -> Path:
    path.write_text("".join(line(number, *regions(number)) for number in numbers))
    return path


def main(out: Path, captions: Path, features: Path, *flags: object, name: str = "custom") -> int:
    given = [name, "--captions", captions, "--features", features, "--out", out, *flags]
    return prepare_captions.main(list(map(str, given)))


def error_of(capsys: Capture, *given: Any, **named: Any) -> str:
    """Run a preparation that must fail, and return its one-line error."""
    return errors.error_of(capsys, "prepare-captions", lambda: main(*given, **named))


FLAGS = (
    "--task image_captioning --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 3e-3 "
    "--lr-scheduler inverse_sqrt --warmup-updates 5 --warmup-init-lr 1e-7 --max-tokens 100 --max-update 60 "
    "--save-interval-updates 7 --keep-interval-updates 3 --no-epoch-checkpoints --log-interval 5 --num-workers 0 --cpu "
    "--encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 "
    "--encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2"
)
EVALUATE = "[evaluate]\n--last 3 --beam 3 --max-len-a 0 --max-len-b 12\n"


def write_recipe(path: Path, data: Path) -> Path:
    path.write_text(f"{data}\n{FLAGS}\n{EVALUATE}")
    return path


def train(recipe: Path, run: Path, *flags: str, arch: str = "captioning_resid") -> int:
    from support import training_here

    return training_here.train(recipe, run, "--arch", arch, *flags)
