"""Small releases and folders of images, and their preparation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_resid.data.images import image_folder, manifest, prepare_images
from support import errors, mirror

Capture = pytest.CaptureFixture[str]
CIFAR10, CIFAR100 = manifest.read("cifar10"), manifest.read("cifar100")
RELEASES = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def main(name: str, out: Path, *flags: object) -> int:
    given = ["--out", out, "--downloads", out.parent / "downloads", *flags]
    if "--workers" not in flags:
        given += ["--workers", 1]
    return prepare_images.main([name, *map(str, given)])


def error_of(capsys: Capture, name: str, out: Path, *flags: object) -> str:
    """Run a preparation that must fail, check that it leaves no partial files, and return its one-line error."""
    found = errors.error_of(capsys, "prepare-images", lambda: main(name, out, *flags))
    assert not list(out.parent.glob("*.partial"))
    return found


def record_of(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "images.json").read_text())
    return found


def stored(data: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and pixels of a split."""
    images = image_folder.open_split(data, split, image_folder.ImageRecord.of(data))
    return np.array(images["label"]), np.array(images["pixels"])


def release(folder: Path, name: str = "cifar10", **changed: str | bytes | None) -> Path:
    """Write a small release.

    changed: new content of members, or None to omit them, by the ends of their names with `_` for each dot
    """
    inside = mirror.cifar_members(name)
    for end, data in changed.items():
        (member,) = [member for member in inside if member.replace(".", "_").endswith(end)]
        del inside[member]
        if data is not None:
            inside[member] = data
    return mirror.cifar(folder, name, inside)
