"""Errors of prepare-images: bad releases, folders and flags each give a one-line error."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairseq_resid.data.images import by_class, image_folder
from support import mirror
from support.image_folders import CIFAR10, CIFAR100, error_of, main, release

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]

TRAIN = CIFAR10.members["train"][1]
IMAGE = bytes([3]) + bytes(3072)


@pytest.mark.parametrize(
    "changed, said",
    [
        (
            {"data_batch_2_bin": IMAGE * 2 + IMAGE[:-1]},
            f"{TRAIN} has 9,218 bytes; expected images of 3,073 bytes each",
        ),
        ({"data_batch_2_bin": None}, f"member {TRAIN} is missing; is the file complete?"),
        ({"meta_txt": "airplane\nship\n"}, f"{CIFAR10.names} does not list the classes of cifar10"),
    ],
)
def test_release_with_wrong_members_is_refused(
    changed: dict[str, Any], said: str, tmp_path: Path, capsys: Capture
) -> None:
    archive = release(tmp_path / "raw", **changed)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive, "--allow-other-data")
    assert found.startswith(str(archive)) and said in found


def test_output_that_is_not_a_folder_is_refused(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "data"
    out.touch()
    found = error_of(capsys, "cifar10", out, "--raw", release(tmp_path / "raw"), "--allow-other-data")
    assert found == f"--out {out}: already exists and is a file; remove it or choose another name"


def web_page(archive: Path) -> None:
    archive.write_text("<!DOCTYPE html><html>Log in</html>")


def cut_off(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-1000])


def flipped(archive: Path) -> None:
    raw = bytearray(archive.read_bytes())
    raw[len(raw) // 2] ^= 4
    archive.write_bytes(raw)


@pytest.mark.parametrize(
    "damage, said",
    [(web_page, "damaged or truncated"), (cut_off, "damaged or truncated"), (flipped, "damaged or truncated")],
)
def test_damaged_release_is_refused(damage: Callable[[Path], None], said: str, tmp_path: Path, capsys: Capture) -> None:
    archive = release(tmp_path / "raw")
    damage(archive)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"not the released file: {archive}: wrong md5 checksum: ")
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive.parent, "--allow-other-data")
    assert found.startswith(f"{archive}: {said}") and found.endswith("replace the file")
    if damage is not web_page:
        host = ["--mirror", archive.parent.as_uri()]
        assert error_of(capsys, "cifar10", tmp_path / "data", *host).endswith("--raw DIR if you have the file")
        found = error_of(capsys, "cifar10", tmp_path / "data", *host, "--allow-other-data")
        assert found.endswith("the file was removed; run the same command to download it again")
        assert not (tmp_path / "downloads" / archive.name).exists()


def test_wrong_number_of_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The number is checked even if the archive has the right checksum."""
    archive = release(tmp_path / "raw")
    monkeypatch.setattr("fairseq_resid.data.images.sources.problem", lambda *_: None)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive)
    assert "train has 30 images; expected 50,000; test has 10 images; expected 10,000" in found


def changed(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def to(mode: str, size: tuple[int, int] = (32, 32), form: str = "png") -> Callable[[Path], None]:
    return lambda raw: Image.new(mode, size).save(raw / "train/dog/0001.png", form)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "size": (to("RGB", (33, 32)), "train/dog/0001.png: 33x32 pixels; expected 32x32"),
    "16 bits": (to("I;16"), "train/dog/0001.png: more than 8 bits per channel (I;16)"),
    "format": (to("RGB", form="pcx"), "train/dog/0001.png: not an image in a supported format (BMP, GIF, JPEG,"),
    "text": (
        lambda raw: (raw / "train/dog/a.txt").write_text("x"),
        "train/dog/a.txt: not an image in a supported format",
    ),
    "empty": (
        lambda raw: changed(raw / "test/dog/0001.png", lambda _: b""),
        "test/dog/0001.png: not an image in a supported format",
    ),
    "cut off": (
        lambda raw: changed(raw / "train/emu/0004.png", lambda data: data[:-700]),
        "train/emu/0004.png: cannot decode this image: ",
    ),
    "damaged": (
        lambda raw: changed(raw / "train/emu/0004.png", lambda data: data[:900] + b"damage" + data[906:]),
        "train/emu/0004.png: cannot decode this image: ",
    ),
    "first": (
        lambda raw: changed(raw / "train/cat/0000.png", lambda data: data[:60]),
        "train/cat/0000.png: cannot decode this image",
    ),
    "no train": (lambda raw: (raw / "train").rename(raw / "training"), "images not found: none of a folder"),
    "no test": (
        lambda raw: (raw / "test").rename(raw / "tests"),
        ": folder test/ is missing; must contain train/CLASS/IMAGE",
    ),
    "valid": (
        lambda raw: (raw / "valid").mkdir(),
        "/valid: the validation set is taken from the training images (--valid N)",
    ),
    "no class": (lambda raw: (shutil.rmtree(raw / "test"), (raw / "test").mkdir()), "/test: contains no images"),
    "unknown class": (
        lambda raw: shutil.copytree(raw / "test/dog", raw / "test/fox"),
        "test/fox: unknown class; the classes are cat, dog, emu",
    ),
    "file": (lambda raw: (raw / "train/notes.txt").write_text("x"), "Not a directory: "),
    "folder": (lambda raw: (raw / "train/dog/more").mkdir(), "Is a directory: "),
    "one value": (
        lambda raw: [Image.new("RGB", (32, 32)).save(file) for file in (raw / "train").rglob("*.png")],
        "a channel of the training images is constant and cannot be normalised",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_folder_is_refused(case: str, workers: int, by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    raw = tmp_path / "raw"
    shutil.copytree(by_classes, raw)
    change, said = BAD[case]
    change(raw)
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", raw, "--workers", workers)
    assert said in found and (str(raw) in found or case == "one value") and not (tmp_path / "data").exists()


def test_known_corpus_requires_its_classes(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", by_classes)
    assert found == (
        f"{by_classes}/train/emu: unknown class; the classes are airplane, automobile, bird, cat, deer, dog, frog, "
        "horse, ship, truck"
    )
    assert len(CIFAR100.classes) == len(set(CIFAR100.classes)) == 100 and list(CIFAR100.classes) == sorted(
        CIFAR100.classes
    )


def test_bad_image_in_archive_is_reported(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    inside = {str(file.relative_to(by_classes)): file.read_bytes() for file in by_classes.rglob("*.png")}
    archive = tmp_path / "raw.tar.xz"
    mirror.archive(archive, {**inside, "train/cat/0002.png": b"no image"})
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"{archive}/train/cat/0002.png: not an image in a supported format")
    mirror.archive(archive, {f"top/{name}": data for name, data in inside.items()})
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"{archive}: folder train/ is missing; must contain train/CLASS/IMAGE")


def die(*_: Any, **__: Any) -> None:
    os._exit(1)


def test_dead_image_worker_is_reported(
    by_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(by_class, "_decode_all", die)
    assert main("custom", tmp_path / "data", "--raw", by_classes, "--workers", 2) == 1
    assert "a worker process died (out of memory?); use fewer --workers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, flags, said",
    [
        ("cifar10", ["--valid", 0], "--valid 0: must be 1 or more"),
        ("cifar10", ["--workers", 0], "--workers 0: must be 1 or more"),
        ("cifar10", ["--raw", "nowhere"], "--raw nowhere: images not found: none of cifar-10-binary.tar.gz, a folder"),
        ("cifar10", ["--raw", ".", "--mirror", "file:///"], "argument --mirror: not allowed with argument --raw"),
        ("custom", [], "custom: --raw is missing; pass the folder of your images"),
        ("custom", ["--mirror", "file:///"], "custom: --raw is missing; pass the folder of your images"),
        ("cifar1000", [], "invalid choice: 'cifar1000'"),
        (
            "cifar10",
            ["--raw", "{empty}"],
            "{empty}: images not found: none of cifar-10-binary.tar.gz, a folder",
        ),
        ("custom", ["--raw", "{file}"], "{file}: images not found: none of a folder with train/CLASS/IMAGE"),
        ("custom", ["--raw", "{images}", "--valid", 15], "--valid 15: must be less than the 15 training images"),
        ("custom", ["--raw", "{images}", "--valid", 14], "--valid 14: would take all 5 training images of dog"),
    ],
)
def test_wrong_flags_are_refused(
    name: str, flags: list[object], said: str, by_classes: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").write_text("x")
    places = {"empty": tmp_path / "empty", "file": tmp_path / "file.bin", "images": by_classes}
    given = [str(flag).format(**places) for flag in flags]
    assert said.format(**places) in error_of(capsys, name, tmp_path / "data", *given)


def test_reader_names_a_changed_or_missing_file(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "animals"
    shutil.copytree(made, out)
    known = image_folder.ImageRecord.of(out)
    shutil.copy(out / "test.npy", out / "valid.npy")
    with pytest.raises(ValueError, match=r"valid\.npy: not the valid split of "):
        image_folder.open_split(out, "valid", known)
    np.save(out / "valid.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"valid\.npy: damaged: "):
        image_folder.open_split(out, "valid", known)
    (out / "valid.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"valid\.npy"):
        image_folder.open_split(out, "valid", known)
