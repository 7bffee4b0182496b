"""Errors of prepare-images: bad releases, folders and flags each give a one-line error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.image_folders import CIFAR100, error_of, release

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_known_corpus_requires_its_classes(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", by_classes)
    assert found == (
        f"{by_classes}/train/emu: unknown class; the classes are airplane, automobile, bird, cat, deer, dog, frog, "
        "horse, ship, truck"
    )
    assert len(CIFAR100.classes) == len(set(CIFAR100.classes)) == 100 and list(CIFAR100.classes) == sorted(
        CIFAR100.classes
    )


def test_damaged_release_is_refused(tmp_path: Path, capsys: Capture) -> None:
    archive = release(tmp_path / "raw")
    raw = bytearray(archive.read_bytes())
    raw[len(raw) // 2] ^= 4
    archive.write_bytes(raw)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"not the released file: {archive}: wrong md5 checksum: ")
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive.parent, "--allow-other-data")
    assert found.startswith(f"{archive}: damaged or truncated")


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-700])


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "size": (lambda raw: Image.new("RGB", (33, 32)).save(raw / "train/dog/0001.png"), "33x32 pixels; expected 32x32"),
    "16 bits": (lambda raw: Image.new("I;16", (32, 32)).save(raw / "train/dog/0001.png"), "more than 8 bits"),
    "cut off": (lambda raw: cut_off(raw / "train/emu/0004.png"), "train/emu/0004.png: cannot decode this image: "),
    "valid": (lambda raw: (raw / "valid").mkdir(), "the validation set is taken from the training images (--valid N)"),
    "unknown class": (lambda raw: shutil.copytree(raw / "test/dog", raw / "test/fox"), "test/fox: unknown class"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folder_is_refused(case: str, by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    raw = shutil.copytree(by_classes, tmp_path / "raw")
    change, said = BAD[case]
    change(raw)
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", raw, "--workers", 2)
    assert said in found and str(raw) in found and not (tmp_path / "data").exists()
